"""The builders of fault plans: each makes a word that the worker knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes import SETTINGS
from gguf_worker import ShardSpec, Supervisor
from gguf_worker.errors import LoadRejected, StartupError
from gguf_worker.testing import FAKE_MODEL, Fault, Frame, faults, plan

pytestmark = pytest.mark.anyio

LATER = 1_000_000
"""A step that no test here comes to."""

HARMLESS = [
    faults.crash(step=LATER),
    faults.segv(step=LATER),
    faults.leave(3, step=LATER),
    faults.hang(step=LATER),
    faults.hang(step=LATER, heeds_cancel=False),
    faults.slow(0),
    faults.not_a_number(step=LATER),
    faults.overflow(step=LATER),
    faults.allocate(step=LATER),
    faults.flood_stderr(step=LATER),
    faults.load_slow(0),
    faults.ignore_term(),
    faults.grandchild(),
    faults.grandchild(in_own_session=True),
]
AT_A_FRAME = [
    faults.hold,
    faults.half_frame,
    faults.huge_length,
    faults.garbage,
    faults.flood_stderr_at,
    lambda frame: faults.leave_at(frame, 3),
]


async def _starts_with(*words: Fault) -> None:
    spec = ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(*words))
    async with Supervisor(spec, settings=SETTINGS) as worker:
        assert await worker.ping() > 0


async def test_words_are_known_to_the_worker() -> None:
    """A plan of them all, up to sixteen, does nothing before its time."""
    await _starts_with(*HARMLESS)


async def test_every_frame_is_known_to_the_worker() -> None:
    """Faults may stand at each of them."""
    frames = [frame for frame in Frame if frame not in (Frame.HELLO, Frame.LOADED, Frame.PROGRESS)]
    at_rest = [frame for frame in frames if frame not in (Frame.PONG, Frame.BYE)]
    await _starts_with(*map(faults.hold, at_rest))


@pytest.mark.parametrize("build", AT_A_FRAME, ids=lambda build: getattr(build, "__name__", "leave_at"))
async def test_word_of_a_frame_is_known_to_the_worker(build) -> None:  # type: ignore[no-untyped-def]
    """Each kind, at a frame that does not come."""
    await _starts_with(build(Frame.SLICED))


@pytest.mark.parametrize(
    ("fault", "words"), [(faults.load_fail(), "fault plan"), (faults.load_crash(), "SIGABRT")]
)
async def test_load_fails_as_planned(fault: Fault, words: str) -> None:
    """By a refusal, and by a crash."""
    with pytest.raises(StartupError, match=words) as caught:
        await _starts_with(fault)
    assert isinstance(caught.value, LoadRejected) == (fault == faults.load_fail())


async def test_load_hangs_as_planned() -> None:
    """It is found for want of progress."""
    spec = ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(faults.load_hang()))
    supervisor = Supervisor(spec, settings=replace(SETTINGS, load_stall_timeout_s=0.3))
    with pytest.raises(StartupError, match="no progress"):
        await supervisor.__aenter__()
