"""Signals that ask for a stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import anyio
import pytest

from gguf_worker.serving.signals import STOP_SIGNALS, stop_signals

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Afterwards the signals do what they did."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM)])
async def test_first_signal_asks_and_the_second_one_is_urgent(numbers: tuple[int, int]) -> None:
    """Whichever they are; a third one would kill, and behind the end they are ignored."""
    first, second = numbers
    with stop_signals() as stop:
        os.kill(os.getpid(), first)
        with anyio.fail_after(20):
            await stop.asked.wait()
        assert (stop.signal, stop.urgent.is_set()) == (first, False)
        os.kill(os.getpid(), second)
        with anyio.fail_after(20):
            await stop.urgent.wait()
        assert stop.signal == second
        assert {signal.getsignal(number) for number in STOP_SIGNALS} == {signal.SIG_DFL}
    assert {signal.getsignal(number) for number in STOP_SIGNALS} == {signal.SIG_IGN}


async def test_ignored_interrupt_stays_ignored() -> None:
    """As nohup and a script's `&` want it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_signals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert callable(signal.getsignal(signal.SIGTERM))
