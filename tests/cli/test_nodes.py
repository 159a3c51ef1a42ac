"""`gguf-worker nodes` and `routes`: what they show of a mesh, and how they end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from gguf_worker.cli import nodes, routes
from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.options import TrackerOptions
from gguf_worker.node.nats import NatsOptions
from gguf_worker.node.tracker.formation import routes as form_routes
from gguf_worker.node.tracker.tracker import View
from gguf_worker.testing.nats import NatsServer
from registered import ARTIFACT, certificate, registration, stage, view
from tracking import tracking

HALVES = (registration("node-a", stage(0, 10)), registration("node-b", stage(10, 30, sessions=1)))


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with NatsServer(jetstream=True) as running:
        yield running


def test_nodes_are_a_table() -> None:
    """One row for each stage; what was refused below it."""
    known = View(
        registrations={one.node: one for one in (*HALVES, registration("node-c"))},
        refused={"node-x": "it speaks version 2.0\x1b[2J\nnode-y  is fine"},
    )
    text = nodes.describe(known, {"node-a": 0.51})
    lines = [line.split() for line in text.splitlines()]
    assert lines[1][:4] == ["node-a", "0:10", "toy", ARTIFACT[:12]]
    assert lines[1][4:] == ["ready", "0/4", "0/4096", "0", "B", "grpc", "node-a:7000", "0.5", "s", "ago"]
    assert lines[2][5] == "1/4"
    assert lines[3][3:5] == ["no", "stage"]
    assert "\x1b" not in text
    assert "version 2.0" in text
    assert not any(line.startswith("node-y") for line in text.splitlines())


def test_empty_mesh_is_said_to_be_empty() -> None:
    assert nodes.describe(View()) == "no node is registered"
    assert routes.describe(form_routes(View())) == "no route"


def test_name_of_a_model_forges_no_line() -> None:
    """It is told by whoever registers."""
    text = routes.describe(form_routes(view(registration("node-a", stage(0, 10, name="toy\nnode-b: fine")))))
    assert not any(line.startswith("node-b") for line in text.splitlines())


def test_routes_are_shown_with_their_stages_and_the_reasons_for_the_rest() -> None:
    formation = form_routes(view(*HALVES, registration("node-c", stage(0, 10, artifact="0" * 64))))
    text = routes.describe(formation)
    assert certificate().id in text
    assert "10:30  node-b" in text
    assert "layers 10:30 are held by nobody" in text
    assert f"artifact: expected {'0' * 64}, actual {ARTIFACT}" in text


@pytest.mark.anyio
async def test_commands_show_what_the_tracker_knows(
    server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """As text and as one JSON object; the exit status says whether there is a route."""
    options = NatsOptions(servers=(server.url,))
    async with tracking(server) as tracker:
        for one in HALVES:
            await tracker.publish(one)
        assert await routes.show_routes(routes.RoutesConfig(nats=options, model=None, json=False)) == 1
        assert "gguf-worker certify" in capsys.readouterr().out
        await tracker.publish_certificate(certificate())
        assert await routes.show_routes(routes.RoutesConfig(nats=options, model="toy", json=True)) == 0
        (route,) = json.loads(capsys.readouterr().out)["routes"]
        assert [one["node"] for one in route["stages"]] == ["node-a", "node-b"]
        assert await routes.show_routes(routes.RoutesConfig(nats=options, model="other", json=False)) == 1
        assert "no node serves it" in capsys.readouterr().out
        await nodes.show_nodes(nodes.NodesConfig(nats=options, watch=False, json=True))
        shown = json.loads(capsys.readouterr().out)["nodes"]
    assert [one["node"] for one in shown] == ["node-a", "node-b"]
    assert shown[0]["stages"][0]["recipe"]["n_ctx"] == "4096"
    assert 0 <= shown[0]["heard_s"] < 6


@pytest.mark.anyio
async def test_watching_shows_every_change(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON object on each line, until it is cancelled."""
    send, receive = anyio.create_memory_object_stream[str](100)
    monkeypatch.setattr("builtins.print", lambda text, **_: send.send_nowait(text))
    config = nodes.NodesConfig(nats=NatsOptions(servers=(server.url,)), watch=True, json=True)
    with send, receive:
        async with tracking(server) as tracker, anyio.create_task_group() as tasks:
            tasks.start_soon(nodes.show_nodes, config)
            with anyio.fail_after(10):
                assert json.loads(await receive.receive())["nodes"] == []
                await tracker.publish(HALVES[0])
                assert [one["node"] for one in json.loads(await receive.receive())["nodes"]] == ["node-a"]
            tasks.cancel_scope.cancel()


def test_tracker_options_become_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them; the token comes from a variable."""
    monkeypatch.setenv("MY_TOKEN", "secret")
    options = TrackerOptions(
        tracker="nats://one:4222,tls://two:4222",
        nats_creds=Path("creds"),
        nats_token_env="MY_TOKEN",
        nats_ca=Path("ca"),
        nats_cert=Path("cert"),
        nats_key=Path("key"),
    )
    assert options.nats_options("somebody") == NatsOptions(
        servers=("nats://one:4222", "tls://two:4222"),
        name="somebody",
        token="secret",
        credentials=Path("creds"),
        tls_ca=Path("ca"),
        tls_certificate=Path("cert"),
        tls_key=Path("key"),
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TrackerOptions(), "--tracker nats://"),
        (TrackerOptions(tracker="memory"), "its own process only"),
        (TrackerOptions(tracker="http://user:secret@host"), "write nats://HOST:PORT"),
        (TrackerOptions(tracker="nats://user:secret,2@host"), "write nats://HOST:PORT"),
        (TrackerOptions(tracker="nats://one:4222, nats://two:4222"), "write nats://HOST:PORT"),
        (TrackerOptions(tracker="nats://one:4222", nats_cert=Path("cert")), "belong together"),
        (TrackerOptions(tracker="nats://one:4222", nats_token_env="NOT_SET_ANYWHERE"), "export"),
    ],
)
def test_tracker_that_cannot_be_is_refused(options: TrackerOptions, words: str) -> None:
    """With the remedy, and without a secret."""
    with pytest.raises(CommandError, match=words) as refused:
        options.nats_options("somebody")
    assert "secret" not in str(refused.value)
