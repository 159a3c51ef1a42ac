"""What is wrong usage of nodes, and said in one line before anything is started."""

from __future__ import annotations

import socket

import pytest

from commandline import CommandLine
from served import MODEL, serving

FAKE = ("serve", MODEL, "--engine", "fake")
NATS = ("--tracker", "nats://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--relay",), "--relay goes over NATS (give --tracker nats://HOST:PORT as well)"),
        ((*NATS, "--relay", "--node", "no dots."), "'no dots.' is no name for a node"),
        (("--advertise", "10.0.0.1:1"), "a node that nobody can reach serves nobody"),
        ((*NATS, "--node", "a"), "a node that nobody can reach serves nobody"),
        (("--listen", "127.0.0.1"), "--listen: '127.0.0.1' is not an address"),
        (("--listen", "127.0.0.1:0", "--advertise", "x"), "--advertise: 'x' is not an address"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "c.pem"), "--tls-cert and --tls-key belong together"),
        (("--listen", "127.0.0.1:0", "--client-ca", "c.pem"), "--client-ca needs TLS"),
        (("--listen", "127.0.0.1:0", "--tracker", "http://x"), "--tracker http://x is no tracker"),
        (("--listen", "127.0.0.1:0", "--advertise", "here:0"), "here:0 is no address that others can dial"),
        (("--listen", "127.0.0.1:0", "--nats-ca", "ca.pem"), "and none was given"),
        (("--certificate", "c.json"), "--certificate is for a node or for the API"),
        ((*NATS, "--relay", "--tls-key", "k.pem"), "--tls-key: nothing is listened on"),
    ],
)
def test_node_that_cannot_be_is_refused(
    arguments: tuple[str, ...], says: str, gguf_worker: CommandLine
) -> None:
    """With the option's name and what to do."""
    result = gguf_worker(*FAKE, *arguments)
    assert result.returncode in (1, 2)
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--listen", "0.0.0.0:0"), "security"),
        (("--listen", "0.0.0.0:0", "--insecure"), "node_config"),
        (("--listen", "127.0.0.1:0", *NATS), "nats_unreachable"),
        (("--listen", "127.0.0.1:0", "--certificate", "no such file"), None),
    ],
)
def test_node_that_cannot_start_ends_with_one_error(
    arguments: tuple[str, ...], code: str | None, gguf_worker: CommandLine
) -> None:
    """In the log's own format, and with exit status 1."""
    ledger = str(gguf_worker.cache_dir / "receipts.sqlite")
    with serving(gguf_worker, *arguments, "--ledger", ledger) as served:
        assert served.wait() == 1
        (failed,) = served.logged("failed")
        assert failed.get("code") == code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no tracker was given"),
        (("--tracker", "memory"), "--tracker memory is known to its own process only"),
        ((*NATS, "--client-key", "k.pem"), "--client-cert and --client-key belong together"),
        ((*NATS, "--relay-only", "--insecure"), "--relay-only dials none"),
        ((*NATS, "--logprobs", "2"), "--logprobs was given without --json"),
    ],
)
def test_text_without_a_mesh_is_refused(
    arguments: tuple[str, ...], says: str, gguf_worker: CommandLine
) -> None:
    """Exit status 2 and one line."""
    result = gguf_worker("generate", "--prompt", "x", *arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_stop_does_not_wait_for_nats(gguf_worker: CommandLine) -> None:
    """Of which the port is open and says nothing."""
    ledger = str(gguf_worker.cache_dir / "receipts.sqlite")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        tracker = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with serving(
            gguf_worker, "--listen", "127.0.0.1:0", "--tracker", tracker, "--ledger", ledger
        ) as served:
            connection, _ = silent.accept()
            with connection:
                assert served.stop() == 0
            assert not served.logged("failed")


def test_node_without_a_mesh_serves_and_stops(gguf_worker: CommandLine) -> None:
    """Loopback, no tracker: whoever knows the address may use it; its pages show it."""
    ledger = str(gguf_worker.cache_dir / "receipts.sqlite")
    options = ("--listen", "127.0.0.1:0", "--node", "alone", "--ledger", ledger, "--http", "127.0.0.1:0")
    with serving(gguf_worker, *options) as served:
        served.wait_notified("READY=1")
        served.wait_logged("node_listening")
        node = served.status()["node"]
        assert (node["name"], node["draining"], node["registered"]) == ("alone", False, True)
        assert (node["sessions"], node["works"], node["nats"]) == (0, 0, None)
        assert [endpoint["kind"] for endpoint in node["endpoints"]] == ["grpc"]
        page = served.get("/metrics")[2]
        assert "gguf_worker_node_info{" in page
        assert 'node="alone"' in page
        assert "gguf_worker_node_registered 1.0" in page
        assert served.stop() == 0
        assert served.logged("withdrawn")
