"""Sessions of stages over the relay: the same bits as without it, and the same ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import pytest

from gguf_worker.errors import StageLost
from gguf_worker.node.nats import Nats, connect_nats
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.relay.link import LinkTimers
from gguf_worker.node.relay.listener import relay_listener
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.protocol.messages import Output
from gguf_worker.testing.nats import NatsServer
from node.relay.conftest import options
from node.rigs import NODE, TOKENS, Rig, node, through
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio

TIMERS = LinkTimers(retransmit_s=0.05, heartbeat_s=0.1, silence_s=5.0, absence_s=2.0)
PIECES = [TOKENS[:16], TOKENS[16:32], *([token] for token in TOKENS[32:40])]


@dataclass
class Relayed:
    """A node that cannot be dialled."""

    rig: Rig
    dialer: RelayDialer

    def stage(self, index: int) -> RemoteStage:
        connect = partial(self.dialer.connect, NODE, timeout_s=5.0)
        return RemoteStage(self.rig.backends[index].describe(), NODE, connect)


@asynccontextmanager
async def relayed(kind: str, node_nats: Nats, client_nats: Nats) -> AsyncIterator[Relayed]:
    async with (
        node(kind) as rig,
        relay_listener(node_nats, NODE, rig.service, timers=TIMERS) as listener,
    ):
        yield Relayed(rig, RelayDialer(client_nats, timers=TIMERS))
        assert listener.links == rig.service.open_sessions == 0


@pytest.fixture(params=["gguf", "toy"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_relayed_stage_in_the_middle_changes_no_bit(
    kind: str, node_nats: Nats, client_nats: Nats
) -> None:
    async with relayed(kind, node_nats, client_nats) as far:
        direct = [far.rig.stage(index) for index in range(3)]
        mixed = [direct[0], far.stage(1), direct[2]]
        relayed_only = [far.stage(index) for index in range(3)]
        chains = [
            [await stage.open_session() for stage in stages] for stages in (direct, mixed, relayed_only)
        ]
        for piece in PIECES:
            first, *others = [await through(chain, piece, Output.LOGITS_ALL) for chain in chains]
            assert first.logits
            assert all(other.logits == first.logits for other in others)
        freed = [[await session.close("stop") for session in chain] for chain in chains]
        assert freed[0] == freed[1] == freed[2]
        await far.rig.ended()


async def test_a_session_outlives_the_nats_server(
    kind: str, server: NatsServer, node_nats: Nats, client_nats: Nats
) -> None:
    async with relayed(kind, node_nats, client_nats) as far:
        direct = [await far.rig.stage(index).open_session() for index in range(3)]
        stages = [far.stage(index) for index in range(3)]
        chain = [await stage.open_session() for stage in stages]
        for number, piece in enumerate(PIECES):
            if number in (1, 4):
                await server.restart()
            logits = (await through(chain, piece, Output.LOGITS_ALL)).logits
            assert logits == (await through(direct, piece, Output.LOGITS_ALL)).logits
        for session in (*direct, *chain):
            await session.close("stop")


async def test_a_cancel_is_acknowledged_with_the_cells_that_it_freed(
    node_nats: Nats, client_nats: Nats
) -> None:
    async with relayed("toy", node_nats, client_nats) as far:
        backend = far.rig.backends[0]
        assert isinstance(backend, ToyBackend)
        session = await far.stage(0).open_session()
        await session.forward_piece(tokens=[1, 2, 3], output=Output.HIDDEN)
        backend.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def compute() -> None:
                await session.forward_piece(tokens=[4], output=Output.HIDDEN)

            tasks.start_soon(compute)
            await backend.waiting.wait()
            tasks.cancel_scope.cancel()
        assert await session.cancel("nobody waits") == 3


async def test_a_node_that_is_gone_is_a_lost_stage(server: NatsServer, client_nats: Nats) -> None:
    hasty = LinkTimers(heartbeat_s=0.1, absence_s=0.2)
    async with (
        node("toy") as rig,
        connect_nats(options(server)) as node_nats,
        relay_listener(node_nats, NODE, rig.service, timers=hasty),
    ):
        dialer = RelayDialer(client_nats, timers=hasty)
        connect = partial(dialer.connect, NODE, timeout_s=5.0)
        session = await RemoteStage(rig.backends[0].describe(), NODE, connect).open_session()
        await node_nats.client.close()
        with anyio.fail_after(5), pytest.raises(StageLost):
            await session.forward_piece(tokens=[1], output=Output.HIDDEN)
        await session.release()
