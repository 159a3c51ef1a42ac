"""Who may reach a node, and what its TLS files must be."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.grpc import (
    CertificateError,
    ClientTls,
    GrpcClientOptions,
    GrpcDialer,
    GrpcOptions,
    SecurityError,
    ServerTls,
    TokenError,
    Tokens,
    read_token,
)
from gguf_worker.node.transport import TransportClosed
from gguf_worker.serving.address import Address, AddressError
from node.grpc.rigs import TIMEOUT_S, TOKEN, Authority, echoed, node

pytestmark = pytest.mark.anyio

ANY = Address("0.0.0.0", 0)
OTHER_TOKEN = "staple-battery-horse-correct"


async def refused(options: GrpcOptions) -> GgufWorkerError:
    """Why a node does not start."""
    with pytest.raises(GgufWorkerError) as caught:
        async with node(options=options):
            pass
    return caught.value


# ---- addresses ----------------------------------------------------------------------------------


async def test_loopback_needs_nothing() -> None:
    async with node(options=GrpcOptions(listen=Address("localhost", 0), grace_s=0.0)) as running:
        assert await echoed(await running.connect())
        assert running.server.tls is False


async def test_loopback_of_the_other_family() -> None:
    try:
        async with node(options=GrpcOptions(listen=Address("::1", 0), grace_s=0.0)) as running:
            assert running.address.startswith("[::1]:")
            assert await echoed(await running.connect())
    except AddressError:
        pytest.skip("there is no IPv6 here")


@pytest.mark.parametrize(
    ("has_tls", "has_tokens", "missing"),
    [(False, False, "TLS and a token"), (False, True, "TLS"), (True, False, "a token")],
    ids=["nothing", "no TLS", "no token"],
)
async def test_any_other_address_needs_tls_and_a_token(
    authority: Authority, has_tls: bool, has_tokens: bool, missing: str
) -> None:
    error = await refused(
        GrpcOptions(
            listen=ANY,
            tls=authority.server() if has_tls else None,
            tokens=Tokens.of({TOKEN: ""}) if has_tokens else None,
        )
    )
    assert isinstance(error, SecurityError)
    assert error.code == "security"
    assert f"{missing} is missing" in error.message
    assert error.fields == {"address": "0.0.0.0:0", "missing": missing}


async def test_a_name_is_loopback_only_if_all_its_addresses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "10.1.2.3")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    error = await refused(GrpcOptions(listen=Address("both.example", 0)))
    assert isinstance(error, SecurityError)
    assert error.fields["address"] == "10.1.2.3:0"


async def test_insecure_is_allowed_and_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    async with node(options=GrpcOptions(listen=ANY, insecure=True, grace_s=0.0)):
        pass
    (line,) = [record for record in caplog.records if getattr(record, "event", "") == "grpc_insecure"]
    assert line.levelno == logging.WARNING
    assert "INSECURE: 0.0.0.0:0 can be reached from other machines without TLS and a token" in line.message


async def test_insecure_says_nothing_where_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    async with node(options=GrpcOptions(insecure=True, grace_s=0.0)):
        assert "INSECURE" not in caplog.text


async def test_any_address_with_tls_and_a_token(authority: Authority) -> None:
    options = GrpcOptions(listen=ANY, tls=authority.server(), tokens=Tokens.of({TOKEN: "acme"}), grace_s=0.0)
    async with node(options=options) as running:
        port = running.address.rpartition(":")[2]
        async with GrpcDialer(GrpcClientOptions(tls=authority.client(), token=TOKEN)) as dialer:
            stream = await dialer.connect(f"127.0.0.1:{port}", timeout_s=TIMEOUT_S)
            assert await echoed(stream)
        assert running.service.accounts == ["acme"]


async def test_an_address_that_is_taken_is_refused() -> None:
    async with node() as running:
        error = await refused(GrpcOptions(listen=Address.parse(running.address)))
    assert isinstance(error, AddressError)
    assert "choose another port" in error.message


async def test_a_host_that_is_not_found_is_refused() -> None:
    error = await refused(GrpcOptions(listen=Address("nowhere.invalid", 0)))
    assert isinstance(error, AddressError)
    assert "nowhere.invalid:0 cannot be found" in error.message


# ---- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", OTHER_TOKEN, TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
async def test_a_wrong_token_is_refused_before_anything_else(token: str) -> None:
    options = GrpcOptions(tokens=Tokens.of({TOKEN: ""}), grace_s=0.0)
    async with node(options=options, client=GrpcClientOptions(token=TOKEN)) as running:
        good = await running.connect()
        async with GrpcDialer(GrpcClientOptions(token=token)) as stranger:
            with pytest.raises(TransportClosed, match="the token is missing or unknown") as caught:
                await stranger.connect(running.address, timeout_s=TIMEOUT_S)
            assert caught.value.code == "unauthenticated"
            assert not caught.value.retryable
            with pytest.raises(TransportClosed) as caught:
                await stranger.describe(running.address)
            assert caught.value.code == "unauthenticated"
        assert await echoed(good)
        assert running.service.accounts == [""]


@pytest.mark.parametrize(
    "method",
    [
        "/gguf_worker.v1.Node/Tokenize",
        "/no.such/Method",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_every_other_method_wants_the_token_too(method: str) -> None:
    options = GrpcOptions(tokens=Tokens.of({TOKEN: ""}), grace_s=0.0)
    async with node(options=options) as running, grpc.aio.insecure_channel(running.address) as channel:
        for metadata in ((), (("authorization", TOKEN),), (("authorization", "Basic " + TOKEN),)):
            call: Any = channel.stream_stream(method)(metadata=metadata)
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_name_accounts_and_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# ours\n{TOKEN} acme\n\n{OTHER_TOKEN}\n")
    tokens = Tokens.from_file(file)
    assert tokens.account(f"Bearer {TOKEN}") == "acme"
    assert tokens.account_of_token(OTHER_TOKEN) == ""
    file.write_text(f"{OTHER_TOKEN} globex and more\n")
    assert tokens.account_of_token(TOKEN) == "acme"  # what cannot be used changes nothing
    file.write_text(f"{OTHER_TOKEN} globex\n")
    assert tokens.account_of_token(TOKEN) is None
    assert tokens.account_of_token(OTHER_TOKEN) == "globex"
    assert read_token(file) == OTHER_TOKEN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no token"),
        ("# nothing\n", "holds no token"),
        ("\nshort\n", "line 2: the token has 5 characters, which can be guessed"),
        (f"{TOKEN} a b\n", "line 1: write the token and, after a space, its account"),
        (f"{TOKEN}\n{TOKEN} a\n", "line 2: the token is there twice"),
        ("pässwörter-sind-lang\n", "characters other than printable ASCII"),
    ],
    ids=["empty", "comment", "short", "words", "twice", "umlaut"],
)
def test_a_file_of_tokens_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(TokenError, match=message) as caught:
        Tokens.from_file(file)
    assert str(file) in caught.value.message
    assert TOKEN not in caught.value.message


def test_no_file_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="cannot be read: no such file"):
        Tokens.from_file(tmp_path / "none")


def test_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GGUF_WORKER_TOKEN", raising=False)
    assert Tokens.from_environment() is None
    monkeypatch.setenv("GGUF_WORKER_TOKEN", TOKEN)
    tokens = Tokens.from_environment()
    assert tokens is not None
    assert tokens.account(f"Bearer {TOKEN}") == ""
    monkeypatch.setenv("GGUF_WORKER_TOKEN", "short")
    with pytest.raises(TokenError, match="can be guessed"):
        Tokens.from_environment()


@pytest.mark.parametrize("address", ["192.0.2.1:1", "node.example:1", "[2001:db8::1]:1"])
async def test_a_token_is_not_sent_in_the_clear_to_another_machine(address: str) -> None:
    async with GrpcDialer(GrpcClientOptions(token=TOKEN)) as dialer:
        with pytest.raises(TransportClosed, match=r"a token is not sent to .* in the clear") as caught:
            await dialer.connect(address, timeout_s=TIMEOUT_S)
        assert caught.value.code == "unauthenticated"


async def test_a_token_may_be_sent_in_the_clear_to_this_machine_or_on_purpose() -> None:
    options = GrpcOptions(tokens=Tokens.of({TOKEN: ""}), grace_s=0.0)
    async with node(options=options, client=GrpcClientOptions(token=TOKEN)) as running:
        port = running.address.rpartition(":")[2]
        assert await echoed(await running.dialer.connect(f"localhost:{port}", timeout_s=TIMEOUT_S))
    async with GrpcDialer(GrpcClientOptions(token=TOKEN, insecure=True)) as dialer:
        with pytest.raises(TransportClosed, match="cannot be reached"):
            await dialer.connect("nowhere.invalid:1", timeout_s=TIMEOUT_S)


def test_options_do_not_show_tokens() -> None:
    assert TOKEN not in repr(GrpcClientOptions(token=TOKEN))
    assert TOKEN not in repr(GrpcOptions(tokens=Tokens.of({TOKEN: ""})))


# ---- TLS files at the start -----------------------------------------------------------------------


async def test_files_that_cannot_be_used_are_named_before_anything_listens(
    authority: Authority, tmp_path: Path
) -> None:
    good, other = authority.server("good"), authority.server("other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate\n")
    expired = authority.server("old", expired=True)
    cases = {
        ServerTls(certificate=tmp_path / "none.pem", key=good.key): "none.pem cannot be read: no such file",
        ServerTls(certificate=good.certificate, key=tmp_path / "none.key"): "none.key cannot be read",
        ServerTls(certificate=text, key=good.key): "text.pem holds no certificate in PEM",
        ServerTls(certificate=good.certificate, key=text): "text.pem holds no private key in PEM",
        ServerTls(certificate=good.certificate, key=other.key): "the key does not belong to the certificate",
        ServerTls(
            certificate=good.certificate, key=good.key, client_ca=text
        ): "text.pem holds no certificate",
        expired: "old.pem expired at 2001-01-02 00:00:00 UTC: renew it",
    }
    for tls, message in cases.items():
        error = await refused(GrpcOptions(tls=tls))
        assert isinstance(error, CertificateError)
        assert message in error.message


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = authority.issue("node")
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(CertificateError, match="is encrypted: give a key without a passphrase"):
        GrpcDialer(GrpcClientOptions(tls=ClientTls(certificate=certificate, key=key)))


def test_a_client_needs_both_halves(authority: Authority) -> None:
    certificate, _ = authority.issue("client")
    with pytest.raises(SecurityError, match="go together"):
        GrpcDialer(GrpcClientOptions(tls=ClientTls(certificate=certificate)))


# ---- TLS at work --------------------------------------------------------------------------------


async def test_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    """A client of the authority is served; one without a certificate, or with one that somebody else issued,
    is not."""
    options = GrpcOptions(tls=authority.server(mutual=True), grace_s=0.0)
    client = GrpcClientOptions(tls=authority.client("alice"))
    (tmp_path / "else").mkdir()
    stranger = Authority(tmp_path / "else").client("mallory")
    async with node(options=options, client=client) as running:
        good = await running.connect()
        assert await echoed(good)
        for tls in (
            authority.client(),
            ClientTls(ca=authority.certificate, certificate=stranger.certificate, key=stranger.key),
        ):
            async with GrpcDialer(GrpcClientOptions(tls=tls)) as dialer:
                with pytest.raises(TransportClosed) as caught:
                    await dialer.connect(running.address, timeout_s=TIMEOUT_S)
                assert caught.value.code == "unreachable"
        assert await echoed(good)


def test_a_client_does_not_show_an_expired_certificate(authority: Authority) -> None:
    with pytest.raises(CertificateError, match=r"bob.pem expired at 2001-01-02"):
        GrpcDialer(GrpcClientOptions(tls=authority.client("bob", expired=True)))


async def test_an_expired_certificate_of_a_client_is_refused(authority: Authority) -> None:
    """By the node too, whatever the client thinks of it."""
    certificate, key = authority.issue("bob", "client.example", expired=True)
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(), key.read_bytes(), certificate.read_bytes()
    )
    options = GrpcOptions(tls=authority.server(mutual=True), grace_s=0.0)
    client = GrpcClientOptions(tls=authority.client("alice"))
    async with node(options=options, client=client) as running:
        good = await running.connect()
        async with grpc.aio.secure_channel(running.address, credentials) as channel:
            call: Any = channel.stream_stream("/gguf_worker.v1.Node/Stage")()
            with anyio.fail_after(TIMEOUT_S):
                assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await echoed(good)


async def test_a_node_with_a_certificate_that_expired_or_is_for_another_host_or_by_a_stranger(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_worker.node.grpc.certificates._check_valid_now", lambda *_: None)
    (tmp_path / "else").mkdir()
    stranger = Authority(tmp_path / "else")
    elsewhere = authority.issue("elsewhere", "node.example")
    cases = {
        authority.server("old", expired=True): "certificate has expired",
        ServerTls(certificate=elsewhere[0], key=elsewhere[1]): "not made out to",
        stranger.server("mallory"): "no authority that was given vouches for",
    }
    for tls, message in cases.items():
        options = GrpcOptions(tls=tls, grace_s=0.0)
        async with node(options=options, client=GrpcClientOptions(tls=authority.client())) as running:
            with pytest.raises(TransportClosed) as caught:
                await running.connect()
            assert caught.value.code == "unreachable"
            assert message in caught.value.message


async def test_a_certificate_for_another_name(authority: Authority) -> None:
    certificate, key = authority.issue("elsewhere", "node.example")
    options = GrpcOptions(tls=ServerTls(certificate=certificate, key=key), grace_s=0.0)
    tls = ClientTls(ca=authority.certificate, server_name="node.example")
    async with node(options=options, client=GrpcClientOptions(tls=tls)) as running:
        assert await echoed(await running.connect())


async def test_one_side_with_tls_and_the_other_without(authority: Authority) -> None:
    secure = GrpcOptions(tls=authority.server(), grace_s=0.0)
    async with node(options=secure) as running:
        with pytest.raises(TransportClosed, match="TLS") as caught:
            await running.connect()
        assert caught.value.code == "unreachable"
    async with node(client=GrpcClientOptions(tls=authority.client())) as running:
        with pytest.raises(TransportClosed, match="listens without TLS") as caught:
            await running.connect()
        assert caught.value.code == "unreachable"


async def test_a_renewed_certificate_is_used_without_a_restart(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections get it; open ones go on. One that cannot be used changes nothing, and is logged
    once."""
    caplog.set_level(logging.INFO)
    tls = authority.server("node")
    async with node(
        options=GrpcOptions(tls=tls, grace_s=0.0), client=GrpcClientOptions(tls=authority.client())
    ) as running:
        first = await running.connect()
        shown = await certificate_of(running.address)
        tls.certificate.write_bytes(b"half of a certif")
        assert await certificate_of(running.address) == shown
        assert await certificate_of(running.address) == shown
        authority.issue("other", into="node")
        renewed = await certificate_of(running.address)
        assert renewed != shown
        assert await echoed(first)
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("files_unusable") == 1
    assert events.count("files_reread") == 1


async def certificate_of(address: str) -> str:
    """What a node shows on a new connection."""
    import ssl

    where = Address.parse(address)
    return await anyio.to_thread.run_sync(ssl.get_server_certificate, (where.host, where.port))


# ---- reachability -------------------------------------------------------------------------------


async def test_an_address_where_nobody_listens_and_then_somebody() -> None:
    """The second attempt is made at once: no pause is left over from the first."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with GrpcDialer() as dialer:
            with pytest.raises(TransportClosed, match="is the node running") as caught:
                await dialer.connect(address, timeout_s=TIMEOUT_S)
            assert (caught.value.code, caught.value.retryable) == ("unreachable", True)
            taken.close()
            async with node(options=GrpcOptions(listen=Address.parse(address), grace_s=0.0)):
                assert await echoed(await dialer.connect(address, timeout_s=1.0))


async def test_an_address_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with GrpcDialer() as dialer:
            with pytest.raises(TransportClosed, match=r"no answer within 0.2 s") as caught:
                await dialer.connect(address, timeout_s=0.2)
            assert caught.value.code == "unreachable"


@pytest.mark.parametrize("address", ["nonsense", "host:", "nowhere.invalid:1"])
async def test_an_address_that_is_none(address: str) -> None:
    async with GrpcDialer() as dialer:
        with pytest.raises(TransportClosed, match="cannot be reached") as caught:
            await dialer.connect(address, timeout_s=TIMEOUT_S)
        assert caught.value.code == "unreachable"


async def test_a_server_that_is_no_node() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with GrpcDialer() as dialer:
        with pytest.raises(TransportClosed, match=r"no node of gguf_worker\.v1") as caught:
            await dialer.connect(f"127.0.0.1:{port}", timeout_s=TIMEOUT_S)
        assert caught.value.code == "version"
    await server.stop(None)
