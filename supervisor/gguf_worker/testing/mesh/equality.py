"""A model over a local chain, over direct nodes, and with a relayed node in the middle: the same bits."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gguf_worker.generation.route import Route
from gguf_worker.identity import Recipe
from gguf_worker.node.config import NodeConfig
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.paths import GRPC, NATS, Paths
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.protocol.messages import Output, Result
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing.mesh.here import node_here
from gguf_worker.testing.nats import NatsServer

CUTS = ((0, 10), (10, 20), (20, 30))
"""Of the demo model's 30 layers."""
RECIPE = Recipe(n_ctx=1024, n_threads=1)
PROMPT = "A proof is a text that leaves nobody any choice, and a measurement is"
N_STEPS = 24
LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """One kind of route, compared with a local chain."""

    name: str
    compared: int
    """Logits."""
    different: int
    """In any bit."""
    tokens: int


async def equality(model: Path, cache: Path | None = None) -> list[Equality]:
    """Compares every logit of a prefill and of greedy decode steps. Shard files are kept in `cache`, else
    where they usually are."""
    cache_dir = None if cache is None else str(cache)
    shards = [ShardSpec(str(model), layers=layers, recipe=RECIPE, cache_dir=cache_dir) for layers in CUTS]
    async with Route.start(shards) as local:
        tokens, expected = await _computed(local)
    results = []
    for name, relayed in (("three direct nodes", ()), ("a relayed node in the middle", (1,))):
        async with _mesh(shards, relayed) as mesh, mesh.route(await mesh.plan(Wanted())) as route:
            drawn, logits = await _computed(route)
        results.append(
            Equality(
                name=name,
                compared=sum(map(len, expected)) // LOGIT_BYTES,
                different=_different(expected, logits) + (drawn != tokens),
                tokens=len(tokens),
            )
        )
    return results


async def _computed(route: Route) -> tuple[list[int], list[bytes]]:
    """Greedy tokens, and every logit on the way."""
    prompt = await route.tokenize(PROMPT)
    async with route.open_chain() as chain:
        results = [await chain.forward(prompt, Output.LOGITS_ALL)]
        tokens = [_best(results[0])]
        for _ in range(N_STEPS):
            results.append(await chain.forward(tokens[-1:], Output.LOGITS))
            tokens.append(_best(results[-1]))
    return tokens, [bytes(result.logits or b"") for result in results]


def _best(result: Result) -> int:
    """The most likely token after the last row."""
    assert result.logits is not None
    last = memoryview(result.logits).cast("B").cast("f")[-result.columns :]
    return max(range(result.columns), key=last.__getitem__)


def _different(expected: Sequence[bytes], actual: Sequence[bytes]) -> int:
    count = 0
    for one, other in zip(expected, actual, strict=True):
        if one != other:
            pairs = zip(memoryview(one).cast("I"), memoryview(other).cast("I"), strict=True)
            count += sum(a != b for a, b in pairs)
    return count


@asynccontextmanager
async def _mesh(shards: Sequence[ShardSpec], relayed: Sequence[int]) -> AsyncIterator[Mesh]:
    """A node for each shard, and a client that dials where it can."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gguf-worker-equality-")))
        server = await stack.enter_async_context(NatsServer(jetstream=True))
        nats = await stack.enter_async_context(connect_nats(NatsOptions(servers=(server.url,))))
        tracker = await stack.enter_async_context(MemoryTracker())
        for index, shard in enumerate(shards):
            is_relayed = index in relayed
            config = NodeConfig(name=f"node-{index}", is_dialled=not is_relayed, relay=is_relayed)
            node = node_here(config, [shard], tracker=tracker, folder=folder, nats=nats)
            await stack.enter_async_context(node)
        dialer = await stack.enter_async_context(GrpcDialer())
        yield Mesh(tracker, Paths({GRPC: dialer, NATS: RelayDialer(nats)}))
