"""`make demo-mesh`: a NATS server, three nodes with one shard each, and a text over them.

The middle node listens on no address; it is reached through the relay only. Everything runs on this machine,
and all of it ends with this program, by Ctrl-C as well.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.cli.interrupt import run_interruptibly
from gguf_worker.errors import GgufWorkerError
from gguf_worker.testing.mesh.node import COMMAND, NodeProcess, NodeSpec
from gguf_worker.testing.nats import NatsServer

CUTS = (10, 20)
"""Of the demo model's 30 layers."""
N_LAYERS = 30
RECIPE = ("--ctx-size", "1024", "--threads", "1")
"""Of the nodes and of their certificate: one recipe."""
CERTIFY = ("--cuts", "10,20", "--steps", "4", "--prompt", "The certificate of a demonstration.")
END_S = 20.0
"""How long a command may take to end by Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    model: str
    prompt: str
    max_tokens: int
    certificate: Path
    """Measured where it is not there."""


async def demo(config: DemoConfig) -> None:
    """Shows it. Raises GgufWorkerError where a part of it does not start."""
    await certify(config)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gguf-worker-mesh-")))
        say("a NATS server, and three nodes with one shard each; the middle one is relayed only")
        server = await stack.enter_async_context(NatsServer(jetstream=True, folder=folder / "nats"))
        nodes = [
            await stack.enter_async_context(NodeProcess(spec)) for spec in specs(config, server.url, folder)
        ]
        async with plain_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(node.wait_ready)
        tracker = ("--tracker", server.url)
        await run("nodes", *tracker)
        await run("routes", *tracker)
        text = ("--prompt", config.prompt, "--max-tokens", str(config.max_tokens))
        await run(
            "generate",
            *tracker,
            *text,
            "--timings",
            shown=f"generate {' '.join(tracker)} --prompt {config.prompt!r} --timings",
        )
        for node in nodes:
            ledger = ("--ledger", str(node.spec.ledger))
            await run("receipts", *ledger, shown=f"receipts --ledger {node.spec.ledger.name}")
        say("stopping the nodes and the server")


def specs(config: DemoConfig, tracker: str, folder: Path) -> list[NodeSpec]:
    """The three nodes."""
    bounds = (0, *CUTS, N_LAYERS)
    return [
        NodeSpec(
            name=name,
            model=config.model,
            layers=(bounds[index], bounds[index + 1]),
            tracker=tracker,
            folder=folder,
            is_dialled=name != "middle",
            is_relayed=name == "middle",
            certificates=(config.certificate,),
            options=RECIPE,
        )
        for index, name in enumerate(("first", "middle", "last"))
    ]


async def certify(config: DemoConfig) -> None:
    """Nodes without a certificate stay dark; it is measured once and kept."""
    if config.certificate.exists():
        return
    say(f"measuring a certificate for the recipe of the nodes; it is kept as {config.certificate}")
    config.certificate.parent.mkdir(parents=True, exist_ok=True)
    await run("certify", config.model, *RECIPE, *CERTIFY, "--output", str(config.certificate), shown="")


async def run(*arguments: str, shown: str | None = None) -> None:
    """Runs `gguf-worker` with our own output. Raises GgufWorkerError where it fails."""
    if shown != "":
        say(f"$ gguf-worker {' '.join(arguments) if shown is None else shown}")
    process = await anyio.open_process(
        [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=None, stderr=None
    )
    async with process:
        try:
            status = await process.wait()
        finally:  # Ctrl-C reaches it as well; it says what it cancelled
            with anyio.move_on_after(END_S, shield=True):
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)
                    await process.wait()
    if status:
        raise GgufWorkerError(f"`gguf-worker {arguments[0]}` ended with status {status}, see above")


def say(text: str) -> None:
    """One line about what comes."""
    print(f"\n{text}", file=sys.stderr, flush=True)


def main() -> int:
    options = _options()
    config = DemoConfig(
        model=str(options.model),
        prompt=options.prompt,
        max_tokens=options.max_tokens,
        certificate=options.certificate,
    )
    try:
        run_interruptibly(demo, config)
    except KeyboardInterrupt:
        return 130
    except (GgufWorkerError, EOFError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gguf_worker.testing.mesh.demo")
    parser.add_argument("--model", type=Path, required=True, help="the demo model")
    parser.add_argument("--prompt", default="The first rule of a good workshop is")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--certificate", type=Path, required=True, help="where it is kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
