"""Which way is taken to a node, and which one after it."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import pytest
from gguf_worker_v1.registration_pb2 import Endpoint

from gguf_worker.node.paths import GRPC, GRPC_TLS, NATS, Paths, PathSettings
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.testing.memory_transport import MemoryLink

pytestmark = pytest.mark.anyio

DIRECT = Endpoint(kind="grpc", address="10.0.0.1:4000")
SECURE = Endpoint(kind="grpc", address="10.0.0.1:4001", tls=True)
RELAYED = Endpoint(kind="nats", address="node-a")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeDialer:
    """Connects, or fails with a code, or never answers."""

    code: str = ""
    hangs: bool = False
    dialled: list[str] = field(default_factory=list)

    async def connect(self, address: str, *, timeout_s: float) -> Transport:  # noqa: ARG002
        self.dialled.append(address)
        if self.hangs:
            await anyio.sleep_forever()
        if self.code:
            raise TransportClosed(f"it is {self.code}", code=self.code)
        return MemoryLink().client


async def test_direct_way_is_taken_first() -> None:
    """Whatever the order in which a node names its endpoints."""
    grpc, nats = FakeDialer(), FakeDialer()
    paths = Paths({GRPC: grpc, NATS: nats})
    await (await paths.connect("node-a", [RELAYED, DIRECT])).aclose()
    assert (grpc.dialled, nats.dialled) == ([DIRECT.address], [])
    assert paths.taken["node-a"] == DIRECT


@pytest.mark.parametrize("code", ["unreachable", "lost", "deadline"])
async def test_relay_is_taken_where_nobody_answers(code: str) -> None:
    """And first for a while, so that not every stream waits for the address that is dead."""
    clock = Clock()
    grpc, nats = FakeDialer(code=code), FakeDialer()
    paths = Paths({GRPC: grpc, NATS: nats}, PathSettings(avoid_s=30), clock)
    for _ in range(3):
        await (await paths.connect("node-a", [DIRECT, RELAYED])).aclose()
    assert (len(grpc.dialled), len(nats.dialled)) == (1, 3)
    clock.now = 31.0
    grpc.code = ""
    await (await paths.connect("node-a", [DIRECT, RELAYED])).aclose()
    assert paths.taken["node-a"] == DIRECT


async def test_address_that_never_answers_is_given_up() -> None:
    """Within the time for one endpoint."""
    paths = Paths({GRPC: FakeDialer(hangs=True), NATS: FakeDialer()}, PathSettings(connect_timeout_s=0.01))
    await (await paths.connect("node-a", [DIRECT, RELAYED])).aclose()
    assert paths.taken["node-a"] == RELAYED


@pytest.mark.parametrize("code", ["unauthenticated", "version"])
async def test_refusal_is_not_asked_for_twice(code: str) -> None:
    """The same node would refuse on another way."""
    nats = FakeDialer()
    paths = Paths({GRPC: FakeDialer(code=code), NATS: nats})
    with pytest.raises(TransportClosed) as caught:
        await paths.connect("node-a", [DIRECT, RELAYED])
    assert caught.value.code == code
    assert not nats.dialled


async def test_error_names_every_way() -> None:
    """What was tried, and why it failed."""
    paths = Paths({GRPC: FakeDialer(code="unreachable"), NATS: FakeDialer(code="lost")})
    with pytest.raises(
        TransportClosed, match=r"node-a cannot be reached: .*10\.0\.0\.1:4000.*; nats node-a"
    ) as caught:
        await paths.connect("node-a", [DIRECT, RELAYED])
    assert (caught.value.code, caught.value.retryable) == ("unreachable", True)


async def test_node_that_is_reached_otherwise_is_said_to_be() -> None:
    """`--relay-only`, and a node that is not relayed."""
    with pytest.raises(TransportClosed, match="it is reached by grpc, and this side goes by nats"):
        await Paths({NATS: FakeDialer()}).connect("node-a", [DIRECT])


async def test_tls_has_a_dialer_of_its_own() -> None:
    """As a dialer either encrypts or does not."""
    plain, secure = FakeDialer(), FakeDialer()
    paths = Paths({GRPC_TLS: secure, GRPC: plain})
    await (await paths.connect("node-a", [SECURE])).aclose()
    assert (plain.dialled, secure.dialled) == ([], [SECURE.address])


async def test_latency_is_of_the_second_stream() -> None:
    """The first one may have to make a connection."""
    grpc = FakeDialer()
    assert await Paths({GRPC: grpc}).latency_s("node-a", [DIRECT]) >= 0
    assert len(grpc.dialled) == 2
