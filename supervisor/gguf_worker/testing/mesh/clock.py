"""A step of the wall clock under a mesh in this process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from gguf_worker.generation.route import Route
from gguf_worker.node.config import NodeConfig
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.paths import GRPC, Paths
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing.mesh.here import node_here
from gguf_worker.testing.mesh.site import FAKE, PROMPT, SAMPLING

STEP_S = 3600.0
NODES = ("first", "middle", "last")


async def stepped_clock(n_tokens: int) -> tuple[list[str], int]:
    """A text while the wall clock goes an hour ahead and two hours back; what went wrong, and the nodes that
    were registered all the time."""
    problems = []
    with tempfile.TemporaryDirectory(prefix="gguf-worker-clock-") as name:
        folder = Path(name)
        async with Route.start([ShardSpec(FAKE.model, engine="fake")]) as whole:
            expected = [
                step
                async for step in whole.generate(
                    await whole.tokenize(PROMPT), max_tokens=n_tokens, sampling=SAMPLING
                )
            ]
        async with _mesh(folder) as mesh, mesh.route(await mesh.plan(Wanted())) as route:
            tokens = await route.tokenize(PROMPT)
            steps, known = [], len(NODES)
            with _steppable_clock() as step_clock:
                async for step in route.generate(tokens, max_tokens=n_tokens, sampling=SAMPLING):
                    steps.append(step)
                    if step.index in (n_tokens // 3, 2 * n_tokens // 3):
                        step_clock(STEP_S if step.index == n_tokens // 3 else -2 * STEP_S)
                    known = min(known, len(mesh.tracker.view().registrations))
        if steps != expected:
            problems.append("the text is another one")
        if known < len(NODES):
            problems.append(f"only {known} nodes were registered for a while")
        for node in NODES:
            with open_ledger(folder / f"{node}.sqlite") as book:
                if len(book.select(ReceiptQuery())) != 1:
                    problems.append(f"{node} has not one receipt")
    return problems, known


@asynccontextmanager
async def _mesh(folder: Path) -> AsyncIterator[Mesh]:
    """Nodes with short leases, so that one which went by the wall clock would end at once."""
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(MemoryTracker())
        for name in NODES:
            config = NodeConfig(name=name, is_dialled=True, heartbeat_s=0.5, lease_s=5.0, drain_timeout_s=1.0)
            shard = ShardSpec(FAKE.model, layers=FAKE.ranges[name], engine="fake")
            await stack.enter_async_context(node_here(config, [shard], tracker=tracker, folder=folder))
        dialer = await stack.enter_async_context(GrpcDialer())
        yield Mesh(tracker, Paths({GRPC: dialer}))


@contextmanager
def _steppable_clock() -> Iterator[Callable[[float], None]]:
    """`time.time` of this process, which the function that this yields moves by seconds."""
    real, offset = time.time, [0.0]

    def move(by_s: float) -> None:
        offset[0] += by_s

    time.time = lambda: real() + offset[0]
    try:
        yield move
    finally:
        time.time = real
