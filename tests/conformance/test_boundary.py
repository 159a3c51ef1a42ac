"""Hidden rows cross the seam in the recipe's boundary dtype."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.chains import open_chain
from conformance.inputs import input_rows
from conformance.shard import SMALL, OpenShard, ShardError, Subject
from shard_engine import Recipe
from tally import Tally

DTYPES = {"f32": 4, "f16": 2, "bf16": 2}
SHORT = ["f16", "bf16"]
LLAMA = pytest.mark.parametrize("subject", ["llama-in_process", "llama-worker"], indirect=True)


def recipe_with(boundary: str) -> Recipe:
    return replace(SMALL, boundary=boundary)


def rounded(values: NDArray[np.float32], boundary: str) -> bytes:
    """float32 values in a boundary dtype, rounded to nearest even by other means than the engine's."""
    if boundary == "f16":
        return values.astype("<f2").tobytes()
    bits = values.view("<u4").astype("u8")
    halves: NDArray[np.uint16] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return halves.tobytes()


def widened(rows: bytes, boundary: str) -> bytes:
    """The same values as float32."""
    if boundary == "f16":
        return np.frombuffer(rows, dtype="<f2").astype("<f4").tobytes()
    bits = np.frombuffer(rows, dtype="<u2").astype(np.uint32)
    return np.left_shift(bits, np.uint32(16)).tobytes()


@pytest.mark.parametrize("boundary", DTYPES)
def test_boundary_is_the_dtype_of_hidden_rows_and_of_no_logits(
    subject: Subject, open_shard: OpenShard, boundary: str
) -> None:
    """Rows have the dtype that the loaded recipe names, in that many bytes; logits stay float32."""
    chain = open_chain(open_shard, subject, (3,), recipe=recipe_with(boundary))
    first, last = chain.shards
    prompt = subject.model.prompts[0]
    assert first.description.recipe.boundary == last.description.recipe.boundary == boundary
    hidden = first.forward(first.open_session(), 0, tokens=prompt, output="hidden")
    assert (hidden.dtype, hidden.n_rows, hidden.n_columns) == (boundary, 12, first.description.n_embd)
    assert len(hidden.values) == DTYPES[boundary] * hidden.n_rows * hidden.n_columns
    logits = last.forward(last.open_session(), 0, hidden=hidden.values, output="logits")
    assert (logits.dtype, len(logits.values)) == ("f32", 4 * last.description.n_vocab)


@LLAMA
@pytest.mark.parametrize("boundary", SHORT)
def test_boundary_rounds_to_nearest_even(subject: Subject, open_shard: OpenShard, boundary: str) -> None:
    """Short rows are the float32 rows of the same layers, rounded; nothing else about them differs."""
    values = []
    for dtype in ("f32", boundary):
        shard = open_shard(subject, layers=(0, 3), recipe=recipe_with(dtype))
        answer = shard.forward(shard.open_session(), 0, tokens=subject.model.prompts[0], output="hidden")
        values.append(answer.values)
    assert values[1] == rounded(np.frombuffer(values[0], dtype="<f4"), boundary)


@LLAMA
@pytest.mark.parametrize("boundary", SHORT)
def test_boundary_widens_exactly(
    subject: Subject, open_shard: OpenShard, tally: Tally, boundary: str
) -> None:
    """A stage that takes short rows computes what it computes from the same values as float32."""
    rows = input_rows(subject, open_shard, (3, 6), recipe=recipe_with(boundary))
    short = rows(0, 12)["hidden"]
    assert isinstance(short, bytes)
    logits = []
    for dtype, hidden in ((boundary, short), ("f32", widened(short, boundary))):
        shard = open_shard(subject, layers=(3, 6), recipe=recipe_with(dtype))
        logits.append(shard.forward(shard.open_session(), 0, hidden=hidden, output="logits_all").values)
    tally.check(logits[1], logits[0], f"{subject.engine} from {boundary} rows")


@pytest.mark.parametrize("boundary", SHORT)
@pytest.mark.parametrize("cuts", [(3,), (1, 2, 3, 4, 5)], ids=str)
def test_boundary_of_the_fake_engine_is_exact_in_every_dtype(
    fake_subject: Subject, open_shard: OpenShard, tally: Tally, boundary: str, cuts: tuple[int, ...]
) -> None:
    """The fake engine's chains equal its unsplit model of the same recipe, whatever the dtype."""
    prompt, logits = fake_subject.model.prompts[0], []
    for one in ((), cuts):
        chain = open_chain(open_shard, fake_subject, one, recipe=recipe_with(boundary))
        logits.append(chain.forward(chain.open_session(), 0, prompt, "logits_all").values)
    tally.check(logits[0], logits[1], f"fake cut at {cuts} with {boundary} rows")


BAD = {"f16": (0x7C00, 0xFC00, 0x7E00, 0x7C01), "bf16": (0x7F80, 0xFF80, 0x7FC0, 0x7F81)}


@pytest.mark.parametrize(
    ("boundary", "pattern"), [(boundary, bits) for boundary in SHORT for bits in BAD[boundary]]
)
def test_boundary_refuses_short_rows_that_are_not_finite(
    subject: Subject, open_shard: OpenShard, boundary: str, pattern: int
) -> None:
    """NaN and infinities of the dtype name their row; a session takes good rows afterwards."""
    shard = open_shard(subject, layers=(2, 4), recipe=recipe_with(boundary))
    good = np.zeros((3, shard.description.n_embd), dtype="<u2")
    bad = good.copy()
    bad[1, -1] = pattern
    session = shard.open_session()
    with pytest.raises(ShardError) as caught:
        shard.forward(session, 0, hidden=bad.tobytes())
    assert (caught.value.code, caught.value.fields) == ("non_finite", {"row": "1", "direction": "in"})
    assert shard.kv_cells_used() == 0
    assert shard.forward(session, 0, hidden=good.tobytes()).length == 3


@pytest.mark.parametrize("output", ["hidden", "none"])
@pytest.mark.parametrize("boundary", DTYPES)
def test_boundary_that_cannot_hold_a_value_is_an_error_where_it_was_made(
    fake_subject: Subject, open_shard: OpenShard, boundary: str, output: str
) -> None:
    """A finite value that its dtype makes infinite is refused by the stage that made it, not by the next."""
    shard = open_shard(fake_subject, layers=(0, 3), recipe=recipe_with(boundary), fault_plan="overflow@2")
    session = shard.open_session()
    shard.forward(session, 0, tokens=[5, 6])
    if boundary != "f16":
        assert shard.forward(session, 2, tokens=[7, 8], output=output).length == 4
        return
    with pytest.raises(ShardError) as caught:
        shard.forward(session, 2, tokens=[7, 8], output=output)
    assert (caught.value.code, caught.value.fields) == ("non_finite", {"row": "1", "direction": "out"})
    assert shard.kv_cells_used() == 2
    assert shard.forward(session, 2, tokens=[7, 8], output=output).length == 4
