"""The states of a supervised worker, and other pure parts of supervision."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from fakes import spec
from gguf_worker import WorkerState, default_cache_dir
from gguf_worker.errors import PinMismatch
from gguf_worker.protocol.messages import Build, Load
from gguf_worker.supervision.lifecycle import TRANSITIONS, Event, Lifecycle, LifecycleError
from gguf_worker.supervision.pin import check_pin


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], WorkerState.STARTING),
        ([Event.HELLO, Event.LOADED], WorkerState.READY),
        ([Event.HELLO, Event.LOADED, Event.STOP, Event.ENDED], WorkerState.STOPPED),
        ([Event.HELLO, Event.REFUSED], WorkerState.FAILED),
        ([Event.HELLO, Event.LOADED, Event.DIED, Event.GIVE_UP], WorkerState.FAILED),
        ([Event.DIED, Event.RETRY, Event.HELLO, Event.LOADED], WorkerState.READY),
        ([Event.DIED, Event.STOP], WorkerState.STOPPED),
        ([Event.HELLO, Event.REFUSED, Event.RESET, Event.HELLO], WorkerState.LOADING),
    ],
)
def test_lifecycle_moves_by_its_table(events: list[Event], state: WorkerState) -> None:
    """A worker's way through its states."""
    lifecycle = Lifecycle()
    for event in events:
        lifecycle.apply(event)
    assert lifecycle.state is state


def test_lifecycle_refuses_what_is_not_in_its_table() -> None:
    """A step that cannot happen is a mistake, and the state stays."""
    lifecycle = Lifecycle()
    with pytest.raises(LifecycleError, match="'loaded' cannot happen to a worker that is starting"):
        lifecycle.apply(Event.LOADED)
    assert lifecycle.state is WorkerState.STARTING


def test_lifecycle_can_reach_every_state_and_ends() -> None:
    """No state is unreachable; stopped is left by nothing, failed by nothing but a reset."""
    assert set(TRANSITIONS.values()) | {WorkerState.STARTING} == set(WorkerState)
    assert set(WorkerState) - {before for before, _ in TRANSITIONS} == {WorkerState.STOPPED}
    assert [event for before, event in TRANSITIONS if before is WorkerState.FAILED] == [Event.RESET]


def test_spec_becomes_a_load_request_with_every_key() -> None:
    """Each key of `load` comes from the specification."""
    request = spec(
        (2, 5), artifact="a" * 64, max_sessions=7, mmap=False, mlock=True, cache_dir="/c", numa="isolate",
        n_stages=3,
    )  # fmt: skip
    load = request.load_request(memory_available=123)
    assert load.memory_available == 123
    for name in {field.name for field in fields(Load)} - {"memory_available"}:
        assert getattr(load, name) == getattr(request, name)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"GGUF_WORKER_CACHE": "/chosen", "XDG_CACHE_HOME": "/xdg"}, "/chosen"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/gguf-worker"),
        ({"HOME": "/home/me"}, "/home/me/.cache/gguf-worker"),
    ],
)
def test_cache_dir_follows_the_environment(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's own variable, then the desktop's convention, then the home folder."""
    for name in ("GGUF_WORKER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_cache_dir() == Path(expected)


def build(pinned: str) -> Build:
    return Build(
        engine="llama",
        engine_version="1",
        pinned_package=pinned,
        pinned_commit="",
        library_commit="",
        library_version="",
        devices=(),
    )


@pytest.mark.parametrize(("pinned", "installed"), [("0.3.36", "0.3.36"), ("", "0.3.36"), ("0.3.36", None)])
def test_pin_that_matches_or_cannot_be_compared_is_accepted(pinned: str, installed: str | None) -> None:
    """Only two known versions can differ."""
    check_pin(build(pinned), installed)


def test_pin_that_differs_names_both_versions_and_the_remedy() -> None:
    """A worker built for another library is refused."""
    with pytest.raises(PinMismatch, match=r"pip install llama-cpp-python==0\.3\.36") as caught:
        check_pin(build("0.3.36"), "0.3.35")
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == ("0.3.36", "0.3.35")
