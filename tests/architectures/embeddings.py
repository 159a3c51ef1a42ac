"""Measures one variant's embeddings: stock llama.cpp's own against those of a chain, bit for bit."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

import shard_engine
from architectures.cut_chain import open_shard
from architectures.measure import Cuts, chains_of
from architectures.workload import SETTINGS, prefill_chunk
from reference import Reference
from shard_engine import Engine, Output, ShardEngineError
from toy.architectures import VARIANTS, build

_STEPS = (tuple(range(3, 3 + SETTINGS.n_ubatch)), (40,), (50, 51, 52))
"""Tokens of one session, step after step: as many as are computed at once, one, and a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """What one variant showed."""

    compared: int
    """Values, over all chains."""
    different: int
    """Values of other bits."""
    refusals: tuple[str, ...]
    """The code of each chain that gives none."""


def measure_embeddings(name: str, folder: Path) -> Embeddings:
    """Builds the toy in `folder` and asks stock llama.cpp and its chains for the same rows."""
    variant = VARIANTS[name]
    model, cache_dir = build(variant, folder), folder / "cache"
    info = shard_engine.inspect(model, cache_dir=cache_dir)
    compared = different = 0
    refusals: list[str] = []
    for cuts in variant.cuts or chains_of(info):
        try:
            actual = _of_chain(model, info.n_layer, cuts, cache_dir)
        except ShardEngineError as error:
            refusals.append(error.code)
            continue
        expected = _of_library(model)
        assert len(actual) == len(expected)
        left, right = (np.frombuffer(values, dtype="<u4") for values in (expected, actual))
        compared += len(left)
        different += int(np.count_nonzero(left != right))
    return Embeddings(compared=compared, different=different, refusals=tuple(refusals))


def _of_library(model: Path) -> bytes:
    with Reference(model, replace(SETTINGS, embeddings=True)) as reference:
        position, rows = 0, b""
        for tokens in _STEPS:
            rows += reference.embed(tokens, position)
            position += len(tokens)
    return rows


def _of_chain(model: Path, n_layer: int, cuts: Cuts, cache_dir: Path) -> bytes:
    with ExitStack() as stack:
        engines = [
            stack.enter_context(open_shard(model, layers, cache_dir, chunk=prefill_chunk(1)))
            for layers in pairwise((0, *cuts, n_layer))
        ]
        sessions = [engine.session_open() for engine in engines]
        position, rows = 0, b""
        for tokens in _STEPS:
            rows += _step(engines, sessions, position, tokens)
            position += len(tokens)
    return rows


def _step(engines: list[Engine], sessions: list[int], position: int, tokens: tuple[int, ...]) -> bytes:
    rows: bytes | None = None
    for engine, session in zip(engines, sessions, strict=True):
        result = engine.forward(
            session,
            position,
            tokens=tokens if rows is None else None,
            hidden=rows,
            output=Output.EMBEDDING if engine is engines[-1] else Output.HIDDEN,
        )
        assert result.rows is not None
        rows = result.rows.data
    assert rows is not None
    return rows
