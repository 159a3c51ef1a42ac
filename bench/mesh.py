"""What does a hop to another node cost a token, on loopback and over a long way?

The demo model in two stages, cut as `serve --shards 2` cuts it, decodes one session. Both stages are workers
of this process; or the last one, or both, belong to nodes in processes of their own, that are dialled (gRPC)
or reached through the relay (NATS). Everything is on this machine, with the same threads and the same prompt,
and has to draw the same tokens.

Then the ways to the nodes, to the NATS server for the relay, get a delay: proxies hold back every byte for 5,
20 and 80 ms, there and back. A client speaks to each stage itself, so a token takes what it takes on one
machine and two delays for each stage that is remote. That formula is compared with what is measured. What is
left over is told apart: the hop itself, what the proxy holds back too long, and what the stages compute more
slowly because they sleep between two tokens.
`hop.py` and `relay.py` measure the hops alone, beside bare gRPC and bare NATS.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from gguf_worker import Recipe, Route, Supervisor
from gguf_worker.generation.local import LocalSource
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh, MeshSource
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.paths import GRPC, NATS, Paths
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.transport import Transport
from kit import program
from kit.delay import Accuracy, Address, accuracy, long_ways
from kit.models import models, settings_of
from kit.nodes import Nodes, nodes
from kit.ours import specs
from kit.program import Options
from kit.report import Ratio, Report, Section, Side, sides_of
from kit.rounds import in_turns

DELAYS_MS = (5, 20, 80)
N_STAGES = 2
PROMPT = "The first rule of a good workshop is"

LOCAL = "local, local"
DIRECT = "local, direct"
RELAYED = "local, relayed"
BOTH_DIRECT = "direct, direct"
BOTH_RELAYED = "relayed, relayed"
REMOTE_STAGES = {DIRECT: 1, RELAYED: 1, BOTH_DIRECT: 2, BOTH_RELAYED: 2}
"""By side."""


def formula_ms(compute_ms: float, n_remote: int, delay_ms: float) -> float:
    """Milliseconds of a token: the client speaks to one stage after the other."""
    return compute_ms + 2 * n_remote * delay_ms


def added_ms(found: Mapping[str, Sequence[float]], side: str) -> float:
    """Median of what a side takes more than the local one of the same round."""
    pairs = zip(found[side], found[LOCAL], strict=True)
    return statistics.median(more - less for more, less in pairs)


# ---- the routes ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Decoding:
    """Decodes through a route, and keeps what it drew."""

    route: Route
    n_tokens: int
    tokens: set[tuple[int, ...]] = field(default_factory=set)
    """Every text so far."""
    computed_ms: list[float] = field(default_factory=list)
    """What the stages say that they computed for a token; of each run."""

    async def turn(self) -> float:
        """Milliseconds of a token after the first one."""
        prompt = await self.route.tokenize(PROMPT)
        async with self.route.generate(prompt, max_tokens=self.n_tokens + 1) as generation:
            before_us = 0
            async for step in generation:
                if not step.index:
                    before_us = sum(stage.compute_us for stage in generation.record.stages)
        record, timings = generation.record, generation.timings
        computed_us = sum(stage.compute_us for stage in record.stages) - before_us
        self.tokens.add(tuple(generation.tokens))
        self.computed_ms.append(computed_us / 1e3 / timings.decode_tokens)
        return 1e3 * timings.decode_s / timings.decode_tokens


class Redirected:
    """Dials other addresses than those that nodes are registered with."""

    def __init__(self, dialer: GrpcDialer, ways: Mapping[Address, Address]) -> None:
        self._dialer = dialer
        self._ways = {f"{host}:{port}": f"{to}:{at}" for (host, port), (to, at) in ways.items()}

    async def connect(self, address: str, *, timeout_s: float) -> Transport:
        return await self._dialer.connect(self._ways[address], timeout_s=timeout_s)


@asynccontextmanager
async def routes(
    here: Nodes, local: Sequence[LocalSource], delay_ms: float | None
) -> AsyncIterator[dict[str, Route]]:
    """Of every side; `delay_ms` None is without proxies, and 0 is with ones that hold nothing back."""
    dialled = [here.grpc_address(name) for name in here.processes]
    targets = [(here.server.host, here.server.port), *dialled]
    async with AsyncExitStack() as stack:
        ways = targets
        if delay_ms is not None:
            ways = await stack.enter_async_context(long_ways(targets, delay_ms / 1e3))
        url = "nats://{}:{}".format(*ways[0])
        nats = await stack.enter_async_context(connect_nats(NatsOptions(servers=(url,))))
        grpc = await stack.enter_async_context(GrpcDialer())
        redirected = Redirected(grpc, dict(zip(dialled, ways[1:], strict=True)))
        direct = Mesh(here.tracker, Paths({GRPC: redirected}))
        relayed = Mesh(here.tracker, Paths({NATS: RelayDialer(nats)}))
        to_direct, to_relayed = await _sources(direct), await _sources(relayed)
        yield {
            LOCAL: Route(local),
            DIRECT: Route([local[0], to_direct[1]]),
            RELAYED: Route([local[0], to_relayed[1]]),
            BOTH_DIRECT: Route(to_direct),
            BOTH_RELAYED: Route(to_relayed),
        }


async def _sources(mesh: Mesh) -> list[MeshSource]:
    plan = await mesh.plan(Wanted())
    return [MeshSource(mesh, plan, index) for index in range(N_STAGES)]


# ---- the sections -------------------------------------------------------------------------------


async def hops(here: Nodes, local: Sequence[LocalSource], options: Options) -> tuple[Section, list[Decoding]]:
    """Without a delay and without proxies."""
    async with routes(here, local, None) as found_routes:
        decoding = _decoding(found_routes, options)
        found = await in_turns({name: one.turn for name, one in decoding.items()}, rounds=options.rounds)
    sides = sides_of(found)
    facts = {f"{name} adds": f"{added_ms(found, name):.3f} ms a token" for name in REMOTE_STAGES}
    section = Section(
        title="hops on loopback, two stages",
        unit="ms a token",
        sides=tuple(sides.values()),
        ratios=tuple(
            Ratio(ours=sides[name], peer=sides[LOCAL], more_is_better=False) for name in REMOTE_STAGES
        ),
        facts={**facts, **_computing(decoding)},
    )
    return section, list(decoding.values())


async def delayed(
    here: Nodes, local: Sequence[LocalSource], options: Options, delay_ms: float, hop_ms: Mapping[str, float]
) -> tuple[Section, list[Decoding]]:
    """Through proxies; `hop_ms` is what a side takes more than the local one through proxies that hold
    nothing back."""
    held_back = await accuracy(delay_ms / 1e3)
    async with routes(here, local, delay_ms) as found_routes:
        decoding = _decoding(found_routes, options)
        found = await in_turns({name: one.turn for name, one in decoding.items()}, rounds=options.rounds)
    sides = sides_of(found)
    ratios = []
    for name, n_remote in REMOTE_STAGES.items():
        values = tuple(formula_ms(value, n_remote, delay_ms) for value in found[LOCAL])
        formula = Side(name=f"formula of {n_remote} remote", values=values)
        sides[formula.name] = formula
        ratios.append(Ratio(ours=sides[name], peer=formula, more_is_better=False))
    facts: dict[str, object] = dict(_proxy(held_back))
    for name, n_remote in REMOTE_STAGES.items():
        left = added_ms(found, name) - 2 * n_remote * delay_ms
        facts[f"{name}: left over"] = _explained(
            left, hop_ms[name], n_remote * _late_ms(held_back), _slower_ms(decoding, name)
        )
    section = Section(
        title=f"a delay of {delay_ms:g} ms each way",
        unit="ms a token",
        sides=tuple(sides.values()),
        ratios=tuple(ratios),
        facts=facts,
        notes=("the formula is local, local + 2 x delay x remote stages: a client speaks to each stage",),
    )
    return section, list(decoding.values())


def _decoding(found: Mapping[str, Route], options: Options) -> dict[str, Decoding]:
    n_tokens = 4 if options.is_tiny else options.given.tokens
    return {name: Decoding(route, n_tokens) for name, route in found.items()}


async def through_proxies(here: Nodes, local: Sequence[LocalSource], options: Options) -> dict[str, float]:
    """Milliseconds that each side takes more than the local one through proxies that hold nothing back."""
    async with routes(here, local, 0) as found_routes:
        decoding = _decoding(found_routes, options)
        found = await in_turns({name: one.turn for name, one in decoding.items()}, rounds=options.rounds)
    return {name: added_ms(found, name) for name in REMOTE_STAGES}


def _computing(decoding: Mapping[str, Decoding]) -> dict[str, object]:
    return {f"{name} computes": f"{_computed_ms(one):.3f} ms a token" for name, one in decoding.items()}


def _computed_ms(decoding: Decoding) -> float:
    return statistics.median(decoding.computed_ms)


def _slower_ms(decoding: Mapping[str, Decoding], name: str) -> float:
    """What the stages of a side compute longer than the local ones."""
    return _computed_ms(decoding[name]) - _computed_ms(decoding[LOCAL])


def _late_ms(held_back: Accuracy) -> float:
    return 1e3 * (held_back.small_s - held_back.asked_s)


def _proxy(held_back: Accuracy) -> dict[str, object]:
    return {
        "a proxy holds 64 bytes back too long": f"{_late_ms(held_back):.3f} ms there and back",
        "8 MiB there and back through it": f"{1e3 * held_back.pipelined_s:.0f} ms, all under way at once",
    }


def _explained(left_ms: float, hop_ms: float, late_ms: float, slower_ms: float) -> str:
    """What is measured beyond the formula, in its parts. What the proxy is late without a delay is in the hop
    as well, so that the parts may come to a little more."""
    rest_ms = left_ms - hop_ms - late_ms - slower_ms
    return (
        f"{left_ms:.2f} ms = hop and proxy without a delay {hop_ms:.2f} + proxy too late {late_ms:.2f} "
        f"+ stages compute longer {slower_ms:.2f} + {rest_ms:.2f}"
    )


# ---- all of it ----------------------------------------------------------------------------------


async def measure(options: Options) -> Report:
    given = options.given
    recipe = Recipe(n_ctx=1024, n_threads=given.threads)
    parts = await specs(options.model, N_STAGES, recipe)
    serving = ("--ctx-size", str(recipe.n_ctx), "--threads", str(recipe.n_threads))
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(
            nodes(str(options.model), [part.layers for part in parts], serving)
        )
        supervisors = [Supervisor(part) for part in parts]
        for supervisor in supervisors:
            await stack.enter_async_context(supervisor)
        local = [LocalSource(supervisor) for supervisor in supervisors]
        section, decodings = await hops(here, local, options)
        sections = [section]
        hop_ms = await through_proxies(here, local, options)
        for delay_ms in (5,) if options.is_tiny else DELAYS_MS:
            section, more = await delayed(here, local, options, delay_ms, hop_ms)
            sections.append(section)
            decodings += more
    texts = {text for one in decodings for text in one.tokens}
    return Report(
        question="What does a hop cost a token, and is the rest of a long way its delay?",
        sections=tuple(sections),
        settings={
            **settings_of(models(options, "demo")),
            "layers": [list(part.layers) for part in parts],
            "threads": given.threads,
            "tokens": given.tokens,
            "rounds": options.rounds,
        },
        problems=() if len(texts) == 1 else (f"the sides drew {len(texts)} different texts",),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=32, help="of each run (32)")
    parser.add_argument("--threads", type=int, default=1, help="of each stage (1)")


if __name__ == "__main__":
    program.run("mesh", __doc__, measure, add=add_options)
