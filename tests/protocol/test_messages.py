"""What messages hold: values are checked where they are made, as where they are read."""

from __future__ import annotations

import math
import struct
from dataclasses import fields
from typing import Any

import pytest

from gguf_worker._schema import SchemaError
from gguf_worker.identity import Recipe
from gguf_worker.protocol.limits import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS
from gguf_worker.protocol.messages import (
    Candidate,
    Estimate,
    Forward,
    Hello,
    Load,
    Model,
    Output,
    Result,
    Sampling,
)
from golden import make_golden


def float32(number: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def result(**what: Any) -> Result:
    usual = {"session": 1, "length": 1, "kv_cells": 1, "queue_us": 0, "compute_us": 0, "batch_rows": 1}
    return Result(**{**usual, **what})


def test_sampling_survives_its_map() -> None:
    """A sampling is its map and the other way round, and every key of the document is in it."""
    sampling = Sampling.from_map(make_golden.sampling())
    assert sampling.to_map() == make_golden.sampling()
    assert Sampling.from_map(sampling.to_map()) == sampling
    assert list(make_golden.sampling()) == [field.name for field in fields(Sampling)]


def test_keys_that_a_worker_may_lack_have_defaults() -> None:
    """A worker that was built before a key was added is understood."""
    said = make_golden.hello()
    del said["build"]["features"]
    assert Hello.from_map(said).build.features == ""
    known = {"architecture": "llama", "name": "A model"}
    model = Model.from_map({**known, "n_layer": 8, "n_embd": 64, "n_vocab": 99, "n_ctx_train": 512})
    assert (model.n_embd_out, model.pooling) == (0, "none")


def test_sampling_numbers_are_float32() -> None:
    """A sampling equals the one that the worker has: its numbers are rounded where it is made."""
    sampling = Sampling(temperature=0.7, top_p=0.9, logit_bias=((3, 0.1),))
    assert (sampling.temperature, sampling.top_p) == (float32(0.7), float32(0.9))
    assert sampling.logit_bias == ((3, float32(0.1)),)
    assert sampling == Sampling(temperature=float32(0.7), top_p=float32(0.9), logit_bias=((3, float32(0.1)),))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("temperature", -0.5, "from 0 to"),
        ("temperature", math.inf, "from 0 to"),
        ("temperature", math.nan, "from 0 to"),
        ("temperature", 10**400, "too large"),
        ("temperature", "hot", "expected a number"),
        ("top_p", 0.0, "above 0 to 1"),
        ("top_p", 1e-60, "above 0 to 1"),
        ("top_p", 1.01, "above 0 to 1"),
        ("min_p", -0.1, "from 0 to 1"),
        ("typical_p", 0, "above 0 to 1"),
        ("repeat_penalty", 0, "above 0"),
        ("presence_penalty", math.inf, "from -3.40282347e"),
        ("frequency_penalty", math.nan, "from -3.40282347e"),
        ("seed", -1, "between 0 and 4294967295"),
        ("top_k", -1, "between 0"),
        ("top_k", 1.0, "expected an integer"),
        ("repeat_last_n", -2, "between -1"),
        ("logit_bias", ((1,),), "array of 2, not of 1"),
        ("logit_bias", ((1, math.inf),), "from -inf to"),
        ("logit_bias", ((1, math.nan),), "from -inf to"),
        ("logit_bias", ((2**31, 0.5),), "between"),
        ("logit_bias", ((1, 0.5),) * (MAX_LOGIT_BIAS + 1), "4097 pairs"),
        ("grammar", "a" * (MAX_GRAMMAR_BYTES + 1), "65537"),
        ("grammar", "a\0b", "without a NUL"),
        ("grammar_start", -1, "between 0"),
        ("top_logprobs", MAX_TOP_LOGPROBS + 1, "between 0 and 64"),
    ],
)
def test_sampling_outside_its_range_is_refused(key: str, value: object, reason: str) -> None:
    """The key and its range are named, whether a sampling is made by hand or read."""
    with pytest.raises(SchemaError, match=f"{key}.*{reason}"):
        Sampling(**{key: value})  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=f"{key}.*{reason}"):
        Sampling.from_map({key: value})


def test_sampling_at_its_limits_is_taken() -> None:
    """The most that each key allows."""
    sampling = Sampling(
        logit_bias=((1, -math.inf),) * MAX_LOGIT_BIAS,
        grammar="a" * MAX_GRAMMAR_BYTES,
        top_logprobs=MAX_TOP_LOGPROBS,
        seed=2**32 - 1,
        repeat_last_n=-1,
    )
    assert len(sampling.logit_bias) == MAX_LOGIT_BIAS


def test_recipe_keys_are_those_of_the_document() -> None:
    """The golden recipe holds every key, in the order of the seam's struct."""
    assert list(make_golden.recipe()) == [field.name for field in fields(Recipe)]


def test_estimate_asks_with_the_keys_of_a_load() -> None:
    """What would be loaded is what is estimated."""
    load = Load(model="fake:", layers=(0, 0), recipe=Recipe(), memory_available=2**40, numa="isolate")
    estimate = Estimate.from_map(load.to_map())
    assert estimate.to_map() == load.to_map()
    assert (estimate.type, load.type) == ("estimate", "load")
    assert not isinstance(estimate, Load)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({}, "'tokens' or 'hidden' must be there"),
        ({"tokens": ()}, "at least one row"),
        ({"tokens": (1,), "hidden": b""}, "at least one row"),
        ({"tokens": (), "hidden": b"abcd"}, "at least one row"),
    ],
)
def test_forward_without_rows_is_refused(rows: dict[str, Any], reason: str) -> None:
    """A forward has rows, and where both kinds are given neither is empty."""
    with pytest.raises(SchemaError, match=reason):
        Forward(session=1, position=0, output=Output.NONE, **rows)


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_result_holds_as_many_bytes_as_its_dtype_needs(dtype: str, size: int) -> None:
    """Rows x columns x bytes of a value, and not one byte more."""
    held = result(output=Output.HIDDEN, rows=2, columns=3, dtype=dtype, hidden=bytes(6 * size))
    assert held.dtype == dtype
    with pytest.raises(SchemaError, match=f"2 x 3 {dtype} values in {6 * size + 1} bytes"):
        result(output=Output.HIDDEN, rows=2, columns=3, dtype=dtype, hidden=bytes(6 * size + 1))


def test_result_of_an_unknown_dtype_is_refused() -> None:
    """Rows that nobody can read are no rows."""
    with pytest.raises(SchemaError, match="'f8' is none of f32, f16, bf16"):
        result(output=Output.HIDDEN, rows=1, columns=1, dtype="f8", hidden=b"a")


def test_result_brings_its_candidates_in_order() -> None:
    """The most likely tokens, with text that may be cut and a logarithm that may be minus infinity."""
    read = Result.from_map(
        make_golden.result(
            1,
            "token",
            top=[
                {"token": 5, "logprob": -0.5, "text": b"\xc3"},
                {"token": 6, "logprob": -math.inf, "text": b""},
            ],
        )
    )
    assert read.top == (
        Candidate(token=5, logprob=-0.5, text=b"\xc3"),
        Candidate(token=6, logprob=-math.inf, text=b""),
    )
    assert Result.from_map(make_golden.result(1, "none")).top == ()
