"""Ctrl-C: the first one stops a command in good order, and further ones do not disturb that."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

import anyio

Config = TypeVar("Config")
Answer = TypeVar("Answer")


def run_interruptibly(command: Callable[[Config], Awaitable[Answer]], config: Config) -> Answer:
    """Runs the command to its end, after which Ctrl-C is ignored. Raises KeyboardInterrupt when it was
    stopped, after it has cleaned up."""
    answers = anyio.run(_answers, command, config)
    if not answers:
        raise KeyboardInterrupt
    return answers[0]


async def _answers(command: Callable[[Config], Awaitable[Answer]], config: Config) -> list[Answer]:
    """What the command returned; nothing when it was stopped."""
    with anyio.CancelScope() as scope:
        _cancel_once(scope)
        try:
            return [await command(config)]
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    return []


def _cancel_once(scope: anyio.CancelScope) -> None:
    """Lets the first Ctrl-C cancel the scope. Not by the loop's own handlers: when the loop closes they lose
    their pipe first, and a Ctrl-C just then is complained about."""
    loop = asyncio.get_running_loop()

    def cancel(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.call_soon_threadsafe(scope.cancel)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as nohup and a script's `&` set it
        signal.signal(signal.SIGINT, cancel)
