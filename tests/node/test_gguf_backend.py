"""A supervised worker as a backend: what it says of itself, and in which state it takes sessions."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import anyio
import pytest

from fakes import LAYERS, PROMPT, SETTINGS, spec
from gguf_worker import Supervisor
from gguf_worker.errors import RequestError
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.identity import identity_to_pb
from gguf_worker.protocol.messages import Output, Sampling
from gguf_worker.work import Work

pytestmark = pytest.mark.anyio


async def test_it_says_what_its_worker_attested() -> None:
    supervisor = Supervisor(spec((0, 5)), settings=SETTINGS)
    backend = GgufBackend(supervisor)
    assert (backend.describe().state, backend.describe().HasField("identity")) == ("starting", False)
    assert not await backend.health()
    async with supervisor as worker:
        stage = backend.describe()
        assert stage.identity == identity_to_pb(worker.identity)
        assert stage.identity.shard != ""
        assert (stage.state, stage.restarts, stage.build.engine) == ("ready", 0, "fake")
        assert stage.build.build_class.startswith("fake-")
        assert (stage.ownership.start, stage.ownership.end, stage.model.n_layer) == (0, 5, LAYERS)
        assert stage.memory.weights_bytes == worker.memory.weights_bytes
        assert stage.capacity.n_ctx == worker.n_ctx
        assert stage.capacity.row_bytes == worker.row_bytes
        assert stage.capacity.prefill_chunk == worker.prefill_chunk
        assert stage.vocabulary.n_tokens == worker.model.n_vocab
        assert await backend.health()
    assert backend.describe().state == "stopped"
    assert not await backend.health()


async def test_load_is_the_last_one_that_was_asked_for() -> None:
    supervisor = Supervisor(spec(), settings=SETTINGS)
    backend = GgufBackend(supervisor)
    assert (await backend.capacity()).sessions == 0
    async with supervisor:
        session = await backend.open(backend.describe().identity, Sampling(), Work())
        await session.forward(position=0, tokens=[1, 2], hidden=None, output=Output.NONE)
        assert backend.describe().load.sessions == 0
        assert (await backend.capacity()).kv_cells_used == 2
        assert backend.describe().load.sessions == 1
        assert (session.kv_cells, await session.trim(1), session.kv_cells) == (2, 1, 1)
        assert await session.close() == 1
        assert await session.close() == 0


async def test_change_is_not_missed_between_two_looks() -> None:
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=PROMPT))
    backend = GgufBackend(supervisor)
    before = backend.describe()
    with anyio.fail_after(20):
        async with supervisor as worker:
            assert backend.describe().state == "ready"  # as somebody else may look meanwhile
            await backend.wait_for_change(before)
            seen = backend.describe()
            os.kill(worker.pid, signal.SIGKILL)
            states: list[str] = []
            while not states or states[-1] != "ready":
                await backend.wait_for_change(seen)
                seen = backend.describe()
                states.append(seen.state)
            assert states[0] == "starting"
            assert seen.restarts == 1


async def test_worker_that_is_gone_takes_no_session_until_it_is_back() -> None:
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=PROMPT))
    backend = GgufBackend(supervisor)
    with pytest.raises(RequestError) as refusal:
        await backend.tokenize(b"a", add_special=False, parse_special=False)
    assert (refusal.value.code, refusal.value.retryable) == ("not_ready", True)
    async with supervisor:
        session = await backend.open(backend.describe().identity, Sampling(), Work())
        assert not await backend.drain(0)
        with pytest.raises(RequestError) as refusal:
            await backend.open(backend.describe().identity, Sampling(), Work())
        assert (refusal.value.code, refusal.value.retryable) == ("draining", True)
        assert backend.describe().state == "draining"
        await session.close()
        assert await backend.drain(5)


async def test_chat_template_is_the_artifacts_own() -> None:
    supervisor = Supervisor(spec(), settings=SETTINGS)
    async with supervisor as worker:
        backend = GgufBackend(supervisor)
        assert await backend.chat_template() == await worker.chat_template()
