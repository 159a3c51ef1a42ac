"""`gguf-worker generate` over nodes that are processes of their own, registered in NATS."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trustme

from certified import certified
from commandline import CommandLine
from gguf_worker.testing import Baseline
from gguf_worker.testing.mesh.node import NodeProcess, NodeSpec
from gguf_worker.testing.nats import NatsServer
from gguf_worker.testing.process import LineProcess
from served import MODEL

pytestmark = pytest.mark.anyio

TOKEN = "a-token-that-nobody-guesses"
LAYERS = {"first": (0, 4), "middle": (4, 8), "last": (8, 12)}
TEXT = ("--prompt", "Hello", "--max-tokens", "12")


@asynccontextmanager
async def mesh(gguf_worker: CommandLine, folder: Path) -> AsyncIterator[tuple[str, dict[str, NodeProcess]]]:
    """Three nodes, the middle one relayed only; the tracker's URL and the nodes."""
    certificate = await certified(gguf_worker, folder, cuts="4,8")
    with Baseline():
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(NatsServer(jetstream=True))
            nodes = {}
            for name, layers in LAYERS.items():
                spec = NodeSpec(
                    name=name,
                    model=MODEL,
                    layers=layers,
                    tracker=server.url,
                    folder=folder,
                    is_dialled=name != "middle",
                    is_relayed=name == "middle",
                    certificates=(certificate,),
                    options=("--engine", "fake"),
                    environment=gguf_worker.environment,
                )
                nodes[name] = await stack.enter_async_context(NodeProcess(spec))
            for node in nodes.values():
                await node.wait_ready()
            yield server.url, nodes
    assert gguf_worker.workers() == []


async def test_text_over_nodes_and_its_end(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """The text of one worker; a relayed stage; receipts; a status page; Ctrl-C, which frees every cell."""
    alone = json.loads((await _run(gguf_worker, "run", MODEL, "--engine", "fake", *TEXT, "--json")).stdout)
    async with mesh(gguf_worker, tmp_path) as (url, nodes):
        tracker = ("--tracker", url)
        told = json.loads((await _run(gguf_worker, "generate", *tracker, *TEXT, "--json")).stdout)
        assert (told["text"], told["tokens"]) == (alone["text"], alone["tokens"])
        assert [stage["endpoint"] for stage in told["route"]["stages"]] == ["grpc", "nats", "grpc"]
        work_id = told["record"]["work_id"]
        listed = await _run(gguf_worker, "receipts", "--ledger", str(nodes["middle"].spec.ledger), "--json")
        assert work_id in listed.stdout
        await _interrupt(gguf_worker, tracker)
        nowhere = await _run(gguf_worker, "generate", *tracker, *TEXT, "--relay-only")
        assert nowhere.returncode == 1
        assert "first cannot be reached: it is reached by grpc, and this side goes by nats" in nowhere.stderr
        status = await _status(nodes["middle"])
        assert status["node"]["nats"]["connected"]
        assert (status["node"]["sessions"], status["node"]["works"]) == (0, 0)


async def test_tls_and_token(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """The account of a token is billed; without the token, or the authority, nobody is let in."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "node.pem")
    (tmp_path / "tokens").write_text(f"{TOKEN} alice\n")
    for name, token in (("right", TOKEN), ("wrong", TOKEN[::-1])):
        (tmp_path / name).write_text(token)
    pem = str(tmp_path / "node.pem")
    async with NatsServer(jetstream=True) as server:
        spec = NodeSpec(
            name="whole",
            model=MODEL,
            layers=(0, 12),
            tracker=server.url,
            folder=tmp_path,
            certificates=(await certified(gguf_worker, tmp_path, cuts="4,8"),),
            options=(
                *("--engine", "fake", "--tls-cert", pem, "--tls-key", pem),
                *("--token-file", str(tmp_path / "tokens")),
            ),
            environment=gguf_worker.environment,
        )

        async def generated(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            common = ("--tracker", server.url, *TEXT)
            return await _run(gguf_worker, "generate", *common, *map(str, arguments))

        async with NodeProcess(spec) as node:
            await node.wait_ready()
            trusted = ("--node-ca", tmp_path / "ca.pem")
            assert (await generated(*trusted, "--token-file", tmp_path / "right")).returncode == 0
            refused = await generated(*trusted, "--token-file", tmp_path / "wrong")
            assert (refused.returncode, "the token is missing or unknown" in refused.stderr) == (1, True)
            mistrusted = await generated("--token-file", tmp_path / "right")
            assert (mistrusted.returncode, "whole: whole cannot be reached" in mistrusted.stderr) == (1, True)
            bill = await _run(gguf_worker, "receipts", "--ledger", str(spec.ledger), "--sum", "account")
            assert [line.split()[:2] for line in bill.stdout.splitlines()][1:2] == [["alice", "1"]]


async def _interrupt(gguf_worker: CommandLine, tracker: tuple[str, str]) -> None:
    """Ctrl-C in the middle of a long text: what each stage acknowledged is shown."""
    endless = ("--logit-bias", "0-inf", "--max-tokens", "4000")
    command = gguf_worker.command("generate", *tracker, "--prompt", "Hello", *endless)
    async with LineProcess(command, environment=gguf_worker.environment) as process:
        await process.wait_line(lambda line: line.startswith("  layers 8:12"))
        await process.wait_written(200)
        process.signal(signal.SIGINT)
        status = await process.wait()
        assert status.exit_code == 130
        assert any("cancelled after" in line for line in process.lines)
        (freed,) = [line for line in process.lines if line.startswith("KV cells freed: ")]
        assert "not told" not in freed
        assert all(f"layers {a}:{b} on " in freed for a, b in LAYERS.values())


async def _status(node: NodeProcess) -> Any:
    address = node.logged("http_listening")[0]["address"]

    def get() -> Any:
        with urllib.request.urlopen(f"http://{address}/v1/status") as page:
            return json.load(page)

    return await anyio.to_thread.run_sync(get)


async def _run(gguf_worker: CommandLine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await anyio.to_thread.run_sync(lambda: gguf_worker(*arguments))
