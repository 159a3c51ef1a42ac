"""Does a crowd of clients who come and go leave anything in the gateway, and does it answer meanwhile?

`gguf-worker serve` with the fake engine in a process of its own; clients that ask, stay or leave in any state
of their requests; and a process that asks /health ten times a second. Afterwards there must be no session, no
KV cell, no request, and no descriptor more than before.

    python bench/gateway.py [--clients 200] [--seconds 30] [--json]
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import psutil

from gguf_worker.testing.process import LineProcess

MODEL = "fake:layers=12,embd=8,vocab=256"
SERVE = (
    *("serve", MODEL, "--engine", "fake", "--shards", "2", "--parallel", "32", "--no-kv-unified"),
    *("--http", "127.0.0.1:0", "--queue", "100", "--json"),
)
PROBES_PER_S = 10
SETTLE_S = 30.0
"""How long after the crowd everything may take to be as it was."""
STAYS = (0.0, 0.02, 0.1, 0.5, 3.0, 60.0)
"""Seconds after which a client loses its patience; one of these for each request."""


@dataclass(slots=True)
class Crowd:
    """What became of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter)

    async def client(self, address: tuple[str, int], chance: random.Random, until: float) -> None:
        """One client: request after request, each over a connection of its own."""
        while time.monotonic() < until:
            outcome = "left"
            with anyio.move_on_after(chance.choice(STAYS)):
                outcome = await _ask(address, _body(chance))
            self.outcomes[outcome] += 1
            if outcome == "429":
                await anyio.sleep(chance.random())


def _body(chance: random.Random) -> dict[str, object]:
    return {
        "prompt": "Hello" * chance.randrange(1, 40),
        "max_tokens": chance.randrange(1, 100),
        "stream": chance.random() < 0.7,
        "n": chance.choice((1, 1, 1, 2)),
    }


async def _ask(address: tuple[str, int], body: dict[str, object]) -> str:
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
    async with await anyio.connect_tcp(*address) as stream:
        await stream.send(head.encode() + b"Connection: close\r\n\r\n" + raw)
        answer = bytearray()
        async for piece in stream:
            answer += piece
    status = answer[9:12].decode()
    is_whole = b"[DONE]" in answer or b'"usage"' in answer or status != "200"
    return status if is_whole else "broken"


# ---- /health, by a process of its own -----------------------------------------------------------


def probe(host: str, port: int, seconds: float) -> None:
    """Prints how many milliseconds the answers took, as JSON."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        took.append(1000 * (time.perf_counter() - began))
        time.sleep(1 / PROBES_PER_S)
    found = {
        "health_probes": len(took),
        "health_p50_ms": round(statistics.median(took), 3),
        "health_p99_ms": round(statistics.quantiles(took, n=100, method="inclusive")[98], 3),
        "health_max_ms": round(max(took), 3),
    }
    print(json.dumps(found))


# ---- the run ------------------------------------------------------------------------------------


async def measure(clients: int, seconds: float) -> dict[str, Any]:
    """Everything that was seen."""
    crowd = Crowd()
    async with LineProcess([sys.executable, "-m", "gguf_worker.cli", *SERVE]) as served:
        line = json.loads(await served.wait_line(lambda text: '"http_listening"' in text))
        await served.wait_line(lambda text: '"gateway_ready"' in text)
        host, _, port = line["address"].rpartition(":")
        address = (host, int(port))
        await _status(address)
        before = _descriptors(served.pid)
        command = [sys.executable, __file__, "--probe", host, port, "--seconds", str(seconds)]
        until = time.monotonic() + seconds
        async with LineProcess(command) as prober, anyio.create_task_group() as tasks:
            for index in range(clients):
                tasks.start_soon(crowd.client, address, random.Random(index), until)
            health = json.loads(await prober.wait_line(lambda text: text.startswith("{")))
        cpu_s = sum(psutil.Process(served.pid).cpu_times()[:2])
        left = await _left(address, served.pid, before)
        status = await _status(address)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": crowd.outcomes.total(),
        "outcomes": dict(crowd.outcomes),
        "tokens": status["gateway"]["tokens"],
        "server_cpu_s": cpu_s,
        "restarts": sum(worker["restarts"] for worker in status["workers"]),
        **health,
        "left": left,
    }


async def _left(address: tuple[str, int], pid: int, before: int) -> dict[str, int]:
    """What is there that should not be, once everything had its time."""
    left: dict[str, int] = {}
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        status = await _status(address)
        executions = [worker["execution"] for worker in status["workers"]]
        model = status["gateway"]["models"][0]
        left = {
            "sessions": sum(one["sessions"] for one in executions),
            "kv_cells": sum(one["kv_cells_used"] for one in executions),
            "active": status["gateway"]["active"],
            "slots": model["active"],
            "kv_cells_promised": model["kv_cells_promised"],
            "descriptors": max(0, _descriptors(pid) - before),
        }
        if not any(left.values()):
            break
        await anyio.sleep(0.5)
    return left


def _descriptors(pid: int) -> int:
    return psutil.Process(pid).num_fds()


async def _status(address: tuple[str, int]) -> dict[str, Any]:
    def get() -> dict[str, Any]:
        connection = http.client.HTTPConnection(*address, timeout=30)
        try:
            connection.request("GET", "/v1/status", headers={"Connection": "close"})
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()

    return await anyio.to_thread.run_sync(get)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="not used: the fake engine needs no file")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args(arguments)  # `make bench` gives the others' as well
    if options.probe:
        probe(options.probe[0], int(options.probe[1]), options.seconds)
        return
    found = anyio.run(measure, options.clients, options.seconds)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(f"{name:18} {value}" for name, value in found.items()))
    is_good = not any(found["left"].values()) and not found["outcomes"].get("broken")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
