"""Bytes that go somewhere and come back, by two ways in turns."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kit.report import Ratio, Section, Side, sides_of
from kit.rounds import in_turns

Carry = Callable[[bytes], Awaitable[None]]
"""Brings bytes there and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What goes through at a time, and how often in a turn."""

    name: str
    n_bytes: int
    times: int


async def load_section(load: Load, ways: Mapping[str, Carry], rounds: int) -> Section:
    """Milliseconds there and back; the second way is compared with the first, the bare one."""
    data = os.urandom(load.n_bytes)
    turns = {name: partial(_turn, carry, data, load.times) for name, carry in ways.items()}
    sides = sides_of(await in_turns(turns, rounds=rounds))
    bare, ours = (sides[name] for name in ways)
    return Section(
        title=f"{load.name}, {load.n_bytes / 1024:,.0f} KiB there and back",
        unit="ms",
        sides=(bare, ours),
        ratios=(Ratio(ours=ours, peer=bare, more_is_better=False),),
        facts=facts_of(load, bare, ours),
    )


def facts_of(load: Load, bare: Side, ours: Side) -> dict[str, object]:
    """Of the medians; throughput counts the bytes once, though they go both ways."""
    mib = load.n_bytes / 2**20
    return {
        "added": f"{ours.median - bare.median:.3f} ms",
        **{f"{side.name} carries": f"{1e3 * mib / side.median:.1f} MiB/s" for side in (bare, ours)},
    }


async def _turn(carry: Carry, data: bytes, times: int) -> float:
    """The median of so many times, in milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await carry(data)
        took.append(time.perf_counter() - began)
    return 1e3 * statistics.median(took)
