"""Measures one variant: unsplit in stock llama.cpp against a chain of engines, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import shard_engine
from architectures.cut_chain import CutChain, open_shard
from architectures.workload import SETTINGS, prefill_chunk, recipe, run
from outlines import estimate_by_file
from reference import Reference
from shard_engine import ArtifactInfo, OpenOptions, ShardEngineError, Status
from toy.architectures import BROKEN, VARIANTS, build, build_broken

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a debugger would take longer than the test waits

Cuts = tuple[int, ...]

_WHOLE = "serve it whole"
"""What a reason ends with where only cuts are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one variant showed."""

    variant: str
    architecture: str
    layers: int
    cut_period: int
    """0: no cut is allowed."""
    reason: str
    """Why not; empty where cuts are allowed."""
    cuts: tuple[Cuts, ...]
    """Each chain that was compared, as the layers it was cut at; an empty one is the whole model in one
    engine."""
    compared: int
    """Logits, over all chains."""
    different: int
    """Logits of other bits."""


def measure(name: str, folder: Path) -> Measurement:
    """Builds the toy in `folder`, runs it unsplit and in chains, and asks for what must be refused.

    Raises AssertionError where something was not refused as it must be or its outline gives another estimate,
    and what the engine raises.
    """
    variant = VARIANTS[name]
    model, cache_dir = build(variant, folder), folder / "cache"
    info = shard_engine.inspect(model, cache_dir=cache_dir)
    assert (info.architecture, info.n_layer) == (variant.architecture, variant.layers)
    _check_refusals(model, info, cache_dir)
    chains = variant.cuts or chains_of(info)
    if chains:
        _check_estimate(model)
    compared, different = _compare(model, info, chains, cache_dir) if chains else (0, 0)
    return Measurement(
        variant=name,
        architecture=variant.architecture,
        layers=info.n_layer,
        cut_period=info.cut_period,
        reason=info.reason,
        cuts=chains,
        compared=compared,
        different=different,
    )


def refuse(name: str, folder: Path) -> tuple[str, str]:
    """Builds the broken model in `folder`, asks for all of it and for a part, and returns why not.

    Raises AssertionError where that was not refused.
    """
    model, cache_dir = build_broken(BROKEN[name], folder), folder / "cache"
    layers = VARIANTS["llama"].layers
    whole, part = (_refusal(model, (0, end), cache_dir) for end in (0, layers // 2))
    assert whole is not None
    assert part is not None
    for error in (whole, part):
        assert error.status in (Status.UNSUPPORTED, Status.MALFORMED), repr(error)
    return whole.message, part.message


def chains_of(info: ArtifactInfo) -> tuple[Cuts, ...]:
    """The chains to compare: two stages, and three where there are three periods.

    Where no cut is allowed, the whole model, unless the engine says that it cannot run that either.
    """
    if not info.supported:
        return ((),) if _WHOLE in info.reason else ()
    period = info.cut_period
    middle = max(1, info.n_layer // period // 2) * period
    assert middle < info.n_layer, f"{info.n_layer} layers are less than two periods of {period}"
    second = middle + period if middle + 2 * period <= info.n_layer else middle
    return ((middle,), (period, second)) if second > period else ((middle,),)


def _compare(model: Path, info: ArtifactInfo, chains: Sequence[Cuts], cache_dir: Path) -> tuple[int, int]:
    """Logits compared, and how many have other bits."""
    with Reference(model, SETTINGS) as reference:
        chunk = prefill_chunk(reference.window)
        expected = _bits(run(reference, chunk))
    _check_sense(expected.view("<f4"))
    compared = different = 0
    for cuts in chains:
        with CutChain(model, info.n_layer, cuts, cache_dir, chunk=chunk) as chain:
            actual = _bits(run(chain, chunk))
        assert len(actual) == len(expected)
        compared += len(expected)
        different += int(np.count_nonzero(actual != expected))
    return compared, different


def _check_sense(logits: NDArray[np.float32]) -> None:
    """Logits that are all alike, or no numbers, would prove nothing by being equal."""
    assert np.isfinite(logits).all()
    assert np.std(logits) > 0.05


def _bits(rows: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.frombuffer(b"".join(rows), dtype="<u4")


def _check_estimate(model: Path) -> None:
    """The outline of a model of any architecture gives what its file gives."""
    options = OpenOptions(recipe=recipe(0), max_sessions=SETTINGS.max_sessions)
    assert shard_engine.estimate(model, **options) == estimate_by_file(model, **options)


def _check_refusals(model: Path, info: ArtifactInfo, cache_dir: Path) -> None:
    """A range that the rules do not allow is refused with a reason, before the library sees it."""
    if not info.supported:
        assert info.cut_period == 0
        assert info.reason
        _check_refused(model, (0, info.n_layer // 2), cache_dir, info.reason)
        if _WHOLE not in info.reason:
            _check_refused(model, (0, info.n_layer), cache_dir, info.reason)
    elif info.cut_period > 1:
        _check_refused(model, (0, info.cut_period - 1), cache_dir, str(info.cut_period))


def _check_refused(model: Path, layers: tuple[int, int], cache_dir: Path, words: str) -> None:
    error = _refusal(model, layers, cache_dir)
    assert error is not None, f"layers {layers} were not refused"
    assert error.status == Status.UNSUPPORTED, repr(error)
    assert words in error.message, f"{words!r} is not in {error.message!r}"


def _refusal(model: Path, layers: tuple[int, int], cache_dir: Path) -> ShardEngineError | None:
    try:
        open_shard(model, layers, cache_dir).close()
    except ShardEngineError as error:
        return error
    return None
