"""A mesh in one process: two nodes with half of a model each, and a client that generates over them.

    gguf-worker certify MODEL.gguf --cuts 15 --output certificate.json
    python examples/mesh.py MODEL.gguf --cut 15 --certificate certificate.json

On several machines each node is a program of its own, the tracker is a `JetStreamTracker`, and everything
else is the same (`gguf-worker serve --listen` and `gguf-worker generate` are such programs).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from gguf_worker import ShardSpec, Supervisor, Utf8Stream
from gguf_worker.certification import read_certificate
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.config import NodeConfig
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.paths import GRPC, Paths
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.service import Surroundings, node_service
from gguf_worker.node.tracker.certificates import certificate_message
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.node.tracker.tracker import Tracker


async def main(options: argparse.Namespace) -> int:
    """Nodes and client; gives the exit status."""
    halves = {"first": (0, options.cut), "second": (options.cut, 0)}  # end 0 is the model's last layer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            async with AsyncExitStack() as stack:
                tracker = await stack.enter_async_context(MemoryTracker())
                for node, layers in halves.items():
                    await stack.enter_async_context(serve(node, layers, tracker, folder, options))
                await generate(tracker, options)
        except GgufWorkerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        for node in halves:
            show_receipts(folder / f"{node}.sqlite")
    return 0


@asynccontextmanager
async def serve(
    name: str, layers: tuple[int, int], tracker: Tracker, folder: Path, options: argparse.Namespace
) -> AsyncIterator[None]:
    """A node with one supervised worker, on any free port of the loopback, while this is open."""
    supervisor = Supervisor(ShardSpec(options.model, layers=layers, engine=options.engine))
    certificate = certificate_message(read_certificate(options.certificate))
    async with supervisor, SqliteLedger(folder / f"{name}.sqlite", node=name) as ledger:
        around = Surroundings(ledger=ledger, tracker=tracker, certificates=[certificate])
        config = NodeConfig(name=name, is_dialled=True, drain_timeout_s=5.0)
        async with node_service(config, [GgufBackend(supervisor)], around):
            yield


async def generate(tracker: Tracker, options: argparse.Namespace) -> None:
    """What a client does: form a route, and generate over it. A lost node is replaced, or waited for."""
    async with GrpcDialer() as dialer:
        mesh = Mesh(tracker, Paths({GRPC: dialer}))
        plan = await mesh.plan(Wanted())
        print(f"route: {', '.join(map(str, plan.stages))}", file=sys.stderr)
        async with mesh.route(plan) as route:
            prompt = await route.tokenize(options.prompt)
            text = Utf8Stream()
            async for step in route.generate(prompt, max_tokens=options.max_tokens):
                print(text.feed(step.text_bytes), end="", flush=True)
            print(text.finish())


def show_receipts(ledger: Path) -> None:
    """One line for each work and node."""
    with open_ledger(ledger) as book:
        for receipt in book.select(ReceiptQuery()):
            layers = ", ".join(receipt.layers)
            print(f"receipt of {receipt.node}: layers {layers}, {receipt.rows} rows", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="a GGUF file; with --engine fake a specification such as fake:layers=12"
    )
    parser.add_argument("--cut", type=int, required=True, help="the second half's first layer")
    parser.add_argument("--certificate", type=Path, required=True, help="for the recipe, by `certify`")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--engine", default="llama")
    sys.exit(anyio.run(main, parser.parse_args()))
