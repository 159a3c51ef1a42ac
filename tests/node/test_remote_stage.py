"""Stages from afar give the same bits as from near, whatever computes them."""

from __future__ import annotations

import pytest

from gguf_worker import Recipe, ShardSpec
from gguf_worker.errors import RemoteProtocolError
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.transport import Transport
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.work import Work
from node.rigs import TOKENS, Rig, backends_of, node, rig_of, through

pytestmark = pytest.mark.anyio


async def near(rig: Rig, pieces: list[list[int]], output: Output) -> list[bytes]:
    """The last stage's rows of each piece, computed on the backends themselves."""
    sessions = [
        await backend.open(backend.describe().identity, Sampling(), Work()) for backend in rig.backends
    ]
    rows = []
    for piece in pieces:
        hidden = None
        for session in sessions[:-1]:
            tokens = piece if hidden is None else None
            result = await session.forward(
                position=session.position, tokens=tokens, hidden=hidden, output=Output.HIDDEN
            )
            hidden = result.hidden
        last = sessions[-1]
        result = await last.forward(position=last.position, tokens=piece, hidden=hidden, output=output)
        rows.append(bytes(result.logits or b""))
    for session in sessions:
        await session.close()
    return rows


async def test_chain_from_afar_is_equal_to_the_bit(kind: str) -> None:
    """Prefill in pieces, decode, trim and fork, compared with the same backends without any stream."""
    pieces = [TOKENS[:16], TOKENS[16:32], TOKENS[32:33], TOKENS[33:34]]
    async with node(kind) as rig:
        expected = await near(rig, pieces, Output.LOGITS_ALL)
        stages = [rig.stage(index) for index in range(3)]
        sessions = [await stage.open_session() for stage in stages]
        for piece, rows in zip(pieces, expected, strict=True):
            assert (await through(sessions, piece, Output.LOGITS_ALL)).logits == rows
        for session in sessions:
            assert await session.trim(32) == 2
        forks = [await session.fork() for session in sessions]
        for chain in (sessions, forks):
            for piece, rows in zip(pieces[2:], expected[2:], strict=True):
                assert (await through(chain, piece, Output.LOGITS_ALL)).logits == rows
        for session in (*sessions, *forks):
            await session.close("stop")
        await rig.ended()


async def test_large_rows_are_the_same_where_they_lie() -> None:
    """Rows that are not copied out of their frame, on the way to a worker and from stage to stage."""
    recipe = Recipe(n_batch=128, n_ubatch=128, prefill_chunk=128)
    model = "fake:layers=2,embd=512,vocab=300"
    specs = [ShardSpec(model, layers=layers, engine="fake", recipe=recipe) for layers in ((0, 1), (1, 2))]
    tokens = [1 + index % 200 for index in range(128)]
    async with backends_of(specs) as backends, rig_of(backends) as rig:
        expected = await near(rig, [tokens], Output.LOGITS_ALL)
        sessions = [await rig.stage(index).open_session() for index in range(2)]
        result = await through(sessions, tokens, Output.LOGITS_ALL)
        assert isinstance(result.logits, memoryview)
        assert result.logits == expected[0]
        assert rig.stage(0).max_rows(Output.HIDDEN) == 128
        for session in sessions:
            await session.close()


async def test_result_says_what_the_backend_said(kind: str) -> None:
    async with node(kind) as rig:
        sessions = [await rig.stage(index).open_session() for index in range(3)]
        result: Result = await through(sessions, TOKENS[:5], Output.TOKEN)
        assert (result.length, result.output, result.rows) == (5, Output.TOKEN, 0)
        assert result.token >= 0
        assert result.compute_us + result.queue_us <= sessions[-1].last_node_us
        for session in sessions:
            await session.release()


async def test_text_is_any_stages_that_has_the_vocabulary(kind: str) -> None:
    async with node(kind) as rig:
        stage = rig.stage(1)
        assert (stage.vocabulary, rig.stage(0).vocabulary is None) == (None, False)
        tokens = await stage.tokenize("hello")
        assert tokens == await rig.stage(0).tokenize(b"hello")
        assert await stage.detokenize(tokens) == await rig.stage(2).detokenize(tokens)
        await rig.ended()


@pytest.mark.parametrize("size", ["n_ctx", "prefill_chunk", "max_batch", "row_bytes"])
async def test_stage_that_could_be_asked_for_nothing_is_refused(size: str) -> None:
    """Whoever registered it: rows are cut by these."""

    async def connect() -> Transport:
        raise AssertionError("it is not dialled")

    async with node("toy") as rig:
        stage = rig.backends[0].describe()
        setattr(stage.capacity, size, 0)
        with pytest.raises(RemoteProtocolError, match="node-b registered"):
            RemoteStage(stage, "node-b", connect)
