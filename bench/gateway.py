"""Does a crowd of clients who come and go leave anything in the gateway, and does it answer meanwhile?

Clients ask, stay or leave in any state of their requests, and a process of its own asks /health ten times a
second. Afterwards there must be no session, no KV cell, no request, no process and no descriptor more than
before. Three runs:

demo  the demo model in three workers, as a user serves it;
fake  the fake engine: nothing is computed, all that there is is the control plane;
mesh  the fake engine on two nodes, with `gguf-worker gateway` before them: there has to be one receipt for
      each work and node, as many works as were asked for, and no work that is open.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from gguf_worker.testing.figures.figure import percentile
from gguf_worker.testing.mesh.audit import audit
from gguf_worker.testing.process import LineProcess
from kit import left, program
from kit.commands import command
from kit.crowd import Crowd, outcome_of
from kit.http import Address, get, get_json, post
from kit.models import models, settings_of
from kit.nodes import Nodes, nodes
from kit.probe import END, figures_in
from kit.program import Options
from kit.receipts import Billed, billed
from kit.report import Ratio, Report, Section, Side

FAKE = "fake:layers=12,embd=8,vocab=256"
FAKE_OPTIONS = ("--engine", "fake", "--parallel", "32", "--no-kv-unified")
SERVE_FAKE = (FAKE, *FAKE_OPTIONS, "--shards", "2")
SERVE_DEMO = ("--shards", "3", "--parallel", "32", "--ctx-size", "16384")
RANGES = ((0, 6), (6, 12))
MOST_TOKENS = 100
"""Of a choice."""
RUNS = ("demo", "fake", "mesh")
PROMISED_MS = 50.0
"""Of /health, p99, with 200 clients."""
SHOWN = 5
"""Most answers of /health that are listed as problems."""
SETTLE_S = 30.0
"""How long after the crowd everything may take to be as it was."""


# ---- what the crowd comes to --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A gateway, and the processes behind it."""

    address: Address
    pids: Mapping[str, int]
    """By name; the gateway's own first."""
    statuses: tuple[Address, ...]
    """Where there is a /v1/status."""
    has_metrics_only: bool = False
    """Whether the gateway itself has none."""
    nodes: Nodes | None = None

    async def in_use(self) -> dict[str, int]:
        """Everything that is held for requests."""
        found: dict[str, int] = {}
        if self.has_metrics_only:
            found |= left.in_use_by_metrics(await get(self.address, "/metrics"))
        for status in await self.status():
            for name, count in left.in_use(status).items():
                found[name] = found.get(name, 0) + count
        return found

    async def status(self) -> list[dict[str, Any]]:
        """Of all that have one."""
        return [await get_json(address, "/v1/status") for address in self.statuses]

    def held(self) -> dict[str, int]:
        """Descriptors and processes."""
        return {
            "descriptors": sum(left.descriptors(pid) for pid in self.pids.values()),
            "processes": sum(left.processes(pid) for pid in self.pids.values()),
        }


@asynccontextmanager
async def served(words: Sequence[str]) -> AsyncIterator[Target]:
    """One `serve` with everything in it."""
    async with command("serve", *words) as one:
        yield Target(address=one.address, pids={"serve": one.pid}, statuses=(one.address,))


@asynccontextmanager
async def meshed() -> AsyncIterator[Target]:
    """Two nodes, and a gateway that knows them by their tracker."""
    async with (
        nodes(FAKE, RANGES, FAKE_OPTIONS) as here,
        command("gateway", "--tracker", here.server.url) as one,
    ):
        yield Target(
            address=one.address,
            pids={"gateway": one.pid, **{name: node.pid for name, node in here.processes.items()}},
            statuses=tuple([await here.http_address(name) for name in here.processes]),
            has_metrics_only=True,
            nodes=here,
        )


# ---- the run ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was seen in one run."""

    crowd: Crowd
    health_ms: list[float]
    health_problems: list[str]
    """Answers of /health that were not 200."""
    left: Mapping[str, int]
    restarts: int
    cpu_s: Mapping[str, float]
    """Of each process while the crowd was there."""
    resident_mib: Mapping[str, tuple[float, float]]
    """Before and after."""
    settled_s: float
    """After the crowd, until nothing was left."""
    billed: Billed | None = None


async def come_and_go(target: Target, crowd: Crowd, clients: int, seconds: float) -> Found:
    """Lets a crowd come, and looks at what is there when it has gone."""
    await _warm_up(target)
    before = target.held()
    cpu = {name: left.cpu_s(pid) for name, pid in target.pids.items()}
    resident = {name: left.resident_mib(pid) for name, pid in target.pids.items()}
    async with _prober(target.address, seconds) as prober:
        await crowd.come(target.address, clients, seconds)
        await prober.wait_line(lambda text: text == END)
        health_ms, health_problems = figures_in(prober.lines)
    began = time.monotonic()
    what_is_left = await _left(target, before)
    settled_s = time.monotonic() - began
    return Found(
        crowd=crowd,
        health_ms=health_ms,
        health_problems=health_problems,
        left=what_is_left,
        restarts=sum(left.restarts(status) for status in await target.status()),
        cpu_s={name: left.cpu_s(pid) - cpu[name] for name, pid in target.pids.items()},
        resident_mib={name: (resident[name], left.resident_mib(pid)) for name, pid in target.pids.items()},
        settled_s=settled_s,
    )


def _prober(address: Address, seconds: float) -> LineProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [address[0], str(address[1]), "/health", str(seconds)]
    return LineProcess([sys.executable, "-m", "kit.probe", *words], environment=environment)


async def _warm_up(target: Target) -> None:
    """One whole request: what is opened once and kept is open then."""
    answer = bytearray()
    body = {"prompt": "Hello", "max_tokens": 4, "n": 2}
    async with await post(target.address, "/v1/completions", body, request_id="warm-up") as stream:
        async for piece in stream:
            answer += piece
    outcome, _ = outcome_of(bytes(answer))
    if outcome != "200":
        raise RuntimeError(f"the first request was answered with {bytes(answer)[-500:]!r}")
    await target.in_use()


async def _left(target: Target, before: Mapping[str, int]) -> dict[str, int]:
    """What is there that should not be, once everything had its time."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = target.held()
        more = {name: max(0, now[name] - count) for name, count in before.items()}
        found = {**await target.in_use(), **more}
        if not any(found.values()) or time.monotonic() > deadline:
            return found
        await anyio.sleep(0.5)


async def with_receipts(target: Target, found: Found) -> Billed:
    """What was billed for it. The nodes end for that, in good order."""
    assert target.nodes is not None
    here, ledgers = target.nodes, target.nodes.ledgers()
    await here.end()
    audited = await audit(ledgers, {}, here.nats)
    return billed(ledgers, found.crowd.asked, audited.problems)


# ---- the report ---------------------------------------------------------------------------------


def section_of(name: str, found: Sequence[Found], receipts: Sequence[Billed], seconds: float) -> Section:
    """One value per round."""
    p50, p99, worst = (
        Side(name=f"/health {what}", values=tuple(percentile(one.health_ms, percent) for one in found))
        for what, percent in (("p50", 50), ("p99", 99), ("slowest", 100))
    )
    promised = Side(name=f"{PROMISED_MS:g} ms", values=(PROMISED_MS,) * len(found))
    last = found[-1]
    asked = len(last.crowd.asked)
    facts: dict[str, object] = {
        "requests": asked,
        "requests_per_s": round(asked / seconds, 1),
        "outcomes": last.crowd.outcomes,
        "tokens_of_whole_answers": sum(one.tokens for one in last.crowd.asked.values()),
        "probes": len(last.health_ms),
        "cpu_s": {name: round(value, 1) for name, value in last.cpu_s.items()},
        "resident_mib_before_and_after": {
            name: [round(one) for one in both] for name, both in last.resident_mib.items()
        },
        "left": dict(last.left),
        "settled_s": round(last.settled_s, 1),
    }
    if receipts:
        facts["receipts"] = receipts[-1].facts
    return Section(
        title=f"{name}: a crowd for {seconds:g} s",
        unit="ms",
        sides=(p50, p99, worst),
        ratios=(Ratio(ours=p99, peer=promised, wanted=1.0, more_is_better=False),),
        facts=facts,
    )


def problems_of(name: str, found: Found, receipts: Billed | None) -> list[str]:
    """What should not have been."""
    problems = [
        *found.crowd.problems,
        *found.health_problems[:SHOWN],
        *(f"{count} {what} left" for what, count in found.left.items() if count),
        *([f"{found.restarts} workers were restarted"] if found.restarts else []),
        *(() if receipts is None else receipts.problems),
    ]
    return [f"{name}: {problem}" for problem in problems]


async def measure(options: Options) -> Report:
    given = options.given
    clients, seconds = (8, 2.0) if options.is_tiny else (given.clients, given.seconds)
    most_tokens = 8 if options.is_tiny else MOST_TOKENS
    sections, problems = [], []
    for name in given.only:
        found: list[Found] = []
        receipts: list[Billed] = []
        for _ in range(options.rounds):
            async with AsyncExitStack() as stack:
                target = await stack.enter_async_context(_target(name, options))
                found.append(await come_and_go(target, Crowd(most_tokens), clients, seconds))
                if target.nodes is not None:
                    receipts.append(await with_receipts(target, found[-1]))
            problems += problems_of(name, found[-1], receipts[-1] if receipts else None)
        sections.append(section_of(name, found, receipts, seconds))
    return Report(
        question="Does a crowd of clients leave anything in the gateway, and does it answer meanwhile?",
        sections=tuple(sections),
        settings={
            **settings_of(models(options, "demo")),
            "clients": clients,
            "seconds": seconds,
            "rounds": options.rounds,
            "serve_demo": " ".join(("serve", "MODEL", *SERVE_DEMO)),
            "serve_fake": " ".join(("serve", *SERVE_FAKE)),
            "nodes": " ".join(("serve", FAKE, *FAKE_OPTIONS)),
        },
        problems=tuple(problems),
    )


def _target(name: str, options: Options) -> AbstractAsyncContextManager[Target]:
    if name == "mesh":
        return meshed()
    return served(SERVE_FAKE if name == "fake" else (str(options.model), *SERVE_DEMO))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=200, help="at the same time (200)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run (60)")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=RUNS, help="runs; all by default")


if __name__ == "__main__":
    program.run("gateway", __doc__, measure, rounds=1, add=add_options)
