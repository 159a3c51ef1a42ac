"""Embeddings have the very bits of stock llama.cpp's own, whole and cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from chain import SETTINGS
from reference import Reference
from shard_engine import Engine, Output, Recipe
from tally import Tally
from toy import KINDS

PROMPT = "the thing in the other hand, and another one"
KINDS_OF_HEADS = ("llama-f32-tied", "llama-q4_k", "llama-q4_k-repacked-head", "llama-moe4", "llama-pooled")


def recipe() -> Recipe:
    """What the reference has too."""
    return Recipe(
        n_ctx=SETTINGS.n_ctx,
        n_batch=SETTINGS.n_batch,
        n_ubatch=SETTINGS.n_ubatch,
        n_threads=SETTINGS.threads,
    )


def embed(engines: list[Engine], sessions: list[int], position: int, tokens: list[int]) -> bytes:
    """Rows through a chain, as embeddings."""
    hidden: bytes | None = None
    for engine, session in zip(engines, sessions, strict=True):
        last = engine is engines[-1]
        result = engine.forward(
            session,
            position,
            tokens=tokens if hidden is None else None,
            hidden=hidden,
            output=Output.EMBEDDING if last else Output.HIDDEN,
        )
        assert result.rows is not None
        hidden = result.rows.data
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("cuts", [(), (3,), (2, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS_OF_HEADS)
def test_embeddings_equal_the_librarys_own(
    kind: str, cuts: tuple[int, ...], build_toy: Callable[[str], Path], cache_dir: Path, tally: Tally
) -> None:
    """Of a prompt, then of a single row behind it and of a few more, every value has the same bits."""
    model = build_toy(kind)
    with Reference(model, replace(SETTINGS, embeddings=True)) as reference, ExitStack() as stack:
        prompt = reference.tokenize(PROMPT)
        engines = [
            stack.enter_context(Engine(model, layers=layers, recipe=recipe(), cache_dir=cache_dir))
            for layers in pairwise((0, *cuts, KINDS[kind].layers))
        ]
        sessions = [engine.session_open() for engine in engines]
        position = 0
        for tokens in (prompt, [9], [11, 12, 13]):
            expected = reference.embed(tokens, position)
            actual = embed(engines, sessions, position, tokens)
            tally.check(expected, actual, f"{kind} cut at {cuts}, position {position}")
            position += len(tokens)


def test_pooling_is_what_the_file_says(build_toy: Callable[[str], Path], cache_dir: Path) -> None:
    """Every stage names it, and the length of the rows; a file that names none is `none`."""
    for kind, pooling in (("llama-pooled", "last"), ("llama-q8_0", "none")):
        for layers in ((0, 6), (0, 3), (3, 6)):
            with Engine(build_toy(kind), layers=layers, recipe=recipe(), cache_dir=cache_dir) as engine:
                loaded = engine.describe()
            assert (loaded.pooling, loaded.n_embd_out) == (pooling, loaded.n_embd)
