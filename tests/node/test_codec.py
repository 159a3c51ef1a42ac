"""Messages survive the wire, frames are read as any protobuf, identities differ where they do."""

from __future__ import annotations

import math

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker import Identity, Recipe
from gguf_worker.errors import RemoteProtocolError, RequestError, RequestTimeout, StageLost
from gguf_worker.node import codec, frames, versions
from gguf_worker.node.identity import build_class_of, differences, identity_to_pb, recipe_text
from gguf_worker.node.remote_errors import error_of, loss
from gguf_worker.node.transport import TransportClosed
from gguf_worker.protocol.messages import (
    Build,
    Candidate,
    Device,
    Model,
    Output,
    Result,
    Sampling,
    Vocabulary,
)
from gguf_worker_v1 import common_pb2, stage_pb2

FLOATS = st.floats(0, 1, width=32, exclude_min=True)


@given(
    st.builds(
        Sampling,
        temperature=FLOATS,
        seed=st.integers(0, 2**32 - 1),
        top_k=st.integers(0, 2**31 - 1),
        top_p=FLOATS,
        min_p=FLOATS,
        typical_p=FLOATS,
        repeat_penalty=FLOATS,
        presence_penalty=st.floats(-2, 2, width=32),
        repeat_last_n=st.integers(-1, 2**31 - 1),
        logit_bias=st.lists(st.tuples(st.integers(0, 99), st.just(-math.inf) | FLOATS)).map(tuple),
        grammar=st.text(st.characters(codec="utf-8", exclude_characters="\0")),
        grammar_start=st.none() | st.integers(0, 2**32 - 2),
        top_logprobs=st.integers(0, 64),
    )
)
@settings(deadline=None, max_examples=50)
def test_sampling_survives(sampling: Sampling) -> None:
    raw = codec.sampling_to_pb(sampling).SerializeToString()
    assert codec.sampling_from_pb(stage_pb2.Sampling.FromString(raw)) == sampling


def test_sampling_that_says_nothing_is_the_default() -> None:
    assert codec.sampling_from_pb(stage_pb2.Sampling()) == Sampling()


def test_grammar_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        codec.sampling_to_pb(Sampling(grammar="root ::= \udcff"))


ROWS = bytes(range(24))
RESULTS = [
    Result(session=1, length=3, kv_cells=2, output=Output.NONE, queue_us=1, compute_us=2, batch_rows=9),
    *(
        Result(
            session=1,
            length=3,
            kv_cells=2,
            output=output,
            queue_us=1,
            compute_us=2,
            batch_rows=9,
            rows=rows,
            columns=3,
            dtype=dtype,
            **{field: ROWS},  # type: ignore[arg-type]
        )
        for output, field, rows, dtype in (
            (Output.HIDDEN, "hidden", 4, "f16"),
            (Output.LOGITS, "logits", 2, "f32"),
            (Output.LOGITS_ALL, "logits", 2, "f32"),
            (Output.EMBEDDING, "embedding", 2, "f32"),
        )
    ),
    Result(
        session=1,
        length=3,
        kv_cells=2,
        output=Output.TOKEN,
        queue_us=1,
        compute_us=2,
        batch_rows=9,
        token=7,
        logprob=-0.5,
        end_of_generation=True,
        text=b"\xff",
        top=(Candidate(token=7, logprob=-0.5, text=b"\xff"),),
    ),
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.output.value)
@pytest.mark.parametrize("view", [bytes, memoryview, lambda rows: memoryview(rows).cast("f")])
def test_result_survives(result: Result, view: type[memoryview]) -> None:
    """However its rows lie in memory."""
    message, field, rows = codec.result_to_pb(result)
    frame = stage_pb2.StageFrame(request=5, result=message)
    read = frames.decode(frames.encode(frame, field, None if rows is None else view(rows)))
    assert read.message.request == 5
    assert codec.result_from_pb(read.message.result, read.rows) == result


SIZES = st.sampled_from([0, 1, 300, frames.LARGE_BYTES - 30, frames.LARGE_BYTES, 3 * frames.LARGE_BYTES])


@given(SIZES, st.lists(st.integers(0, 2**31 - 1)))
@settings(deadline=None, max_examples=50)
def test_frame_with_rows_is_plain_protobuf(size: int, tokens: list[int]) -> None:
    """What is written in two parts is the message that protobuf itself would write in one, and both are read
    alike."""
    rows = bytes(index % 251 for index in range(size))
    forward = stage_pb2.Forward(position=3, tokens=tokens, output=stage_pb2.OUTPUT_TOKEN)
    raw = frames.encode(stage_pb2.StageFrame(request=9, forward=forward), "hidden", rows)
    whole = stage_pb2.StageFrame(request=9, forward=forward)
    whole.forward.hidden = rows
    assert stage_pb2.StageFrame.FromString(raw) == whole
    for one in (raw, whole.SerializeToString()):
        read = frames.decode(one)
        assert read.rows == rows
        assert (read.message.request, read.message.forward.position) == (9, 3)
        assert list(read.message.forward.tokens) == tokens


def test_large_frame_is_read_as_protobuf_reads_it() -> None:
    """Where the last body is another one, the first does not count; where there is only one, it has all."""
    rows = bytes(frames.LARGE_BYTES)
    alone = frames.encode(stage_pb2.StageFrame(forward=stage_pb2.Forward()), "hidden", rows)
    opened = stage_pb2.StageFrame(request=2, open=stage_pb2.Open(attempt=1)).SerializeToString()
    for raw in (alone, opened + alone, alone + alone):
        read, expected = frames.decode(raw), stage_pb2.StageFrame.FromString(raw)
        assert (read.message.WhichOneof("body"), read.message.request) == ("forward", expected.request)
        assert read.rows == expected.forward.hidden
    last = frames.decode(alone + opened)
    assert (last.message.WhichOneof("body"), last.rows) == ("open", None)


@given(st.binary(max_size=40), st.binary(max_size=40))
@settings(deadline=None, max_examples=50)
def test_large_garbage_is_what_protobuf_says_of_it(head: bytes, tail: bytes) -> None:
    raw = head + bytes(frames.LARGE_BYTES) + tail
    try:
        stage_pb2.StageFrame.FromString(raw)
    except DecodeError:
        with pytest.raises(RemoteProtocolError):
            frames.decode(raw)
    else:
        frames.decode(raw)


def test_result_that_is_not_what_it_says_is_refused() -> None:
    for wrong in (stage_pb2.Result(output=99), stage_pb2.Result(rows=2, columns=2, dtype="f32", hidden=b"")):  # type: ignore[arg-type]
        with pytest.raises(RemoteProtocolError):
            codec.result_from_pb(wrong, None)
    with pytest.raises(RemoteProtocolError):
        frames.decode(b"\xff\xff")


def test_parts_of_a_stage_survive() -> None:
    model = Model(
        architecture="llama",
        name="m",
        n_layer=3,
        n_embd=4,
        n_vocab=5,
        n_ctx_train=6,
        n_embd_out=4,
        pooling="cls",
    )
    vocabulary = Vocabulary(
        n_tokens=5, bos=1, eos=2, eot=-1, newline=3, padding=-1, add_bos=True, add_eos=False
    )
    assert codec.model_from_pb(codec.model_to_pb(model)) == model
    assert codec.vocabulary_from_pb(codec.vocabulary_to_pb(vocabulary)) == vocabulary


def test_name_that_is_no_utf8_is_told_as_well_as_can_be() -> None:
    model = Model(architecture="llama", name="a\udcffb", n_layer=3, n_embd=4, n_vocab=5, n_ctx_train=6)
    assert codec.model_to_pb(model).name == "a\ufffdb"


# ---- identity, build class, version -------------------------------------------------------------


def test_recipe_as_text() -> None:
    text = recipe_text(Recipe(n_ctx=512, flash_attn=False, rope_freq_base=1e6, yarn_ext_factor=-0.0))
    assert (text["n_ctx"], text["flash_attn"], text["rope_freq_base"]) == ("512", "false", "1000000")
    assert (text["yarn_ext_factor"], text["split_mode"]) == ("0", "layer")
    assert len(text) == len(Recipe().to_map())


def test_rows_behind_millions_of_fields_are_left_to_protobuf() -> None:
    """Walking over them here would hold up every other stream."""
    frame = stage_pb2.StageFrame(request=1, forward=stage_pb2.Forward(position=2))
    rows = bytes(frames.LARGE_BYTES)
    read = frames.decode(b"\x08\x07" * 20 + frames.encode(frame, "hidden", rows))
    assert read.rows == rows
    assert not isinstance(read.rows, memoryview)
    assert (read.message.request, read.message.forward.position) == (1, 2)


def test_identities_differ_field_by_field() -> None:
    one = identity_to_pb(Identity(artifact="a" * 64, start=0, end=4, recipe=Recipe(), shard="b" * 64))
    other = identity_to_pb(Identity(artifact="a" * 64, start=0, end=5, recipe=Recipe(n_threads=2)))
    assert [str(one) for one in differences(one, other)] == [
        "end: expected 4, actual 5",
        "recipe.n_threads: expected 0, actual 2",
    ]
    assert differences(one, one) == []


def build(**changes: object) -> Build:
    values: dict[str, object] = {
        "engine": "llama",
        "engine_version": "1",
        "pinned_package": "p",
        "pinned_commit": "0c1e5701234",
        "library_commit": "0c1e5701234",
        "library_version": "9",
        "devices": (device("cpu", memory_free=1),),
        "features": "AVX2 = 1",
        **changes,
    }
    return Build(**values)  # type: ignore[arg-type]


def device(kind: str, **changes: object) -> Device:
    values: dict[str, object] = {
        "name": kind,
        "description": kind,
        "kind": kind,
        "memory_total": 5,
        "memory_free": 1,
        **changes,
    }
    return Device(**values)  # type: ignore[arg-type]


def test_build_class_is_readable_and_knows_what_changes_bits() -> None:
    word = build_class_of(build())
    assert word.startswith("llama-0c1e570-cpu-")
    assert build_class_of(build(devices=(device("cpu", memory_free=2),))) == word
    others = [
        build(features="AVX512 = 1"),
        build(library_commit="fffffff"),
        build(engine_version="2"),
        build(devices=(device("cpu"), device("gpu", description="A"))),
        build(devices=(device("cpu"), device("gpu", description="B"))),
    ]
    assert len({word, *map(build_class_of, others)}) == 1 + len(others)


def test_versions() -> None:
    versions.check(common_pb2.Version(major=1, minor=7))
    with pytest.raises(versions.VersionRefused, match=r"version 2\.0 .* and this side 1\.0"):
        versions.check(common_pb2.Version(major=2))


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "ends_stream", "kind"),
    [
        ("capacity", False, RequestError),
        ("worker_died", False, StageLost),
        ("not_ready", False, StageLost),
        ("draining", False, StageLost),
        ("stopped", True, StageLost),
        ("timeout", False, RequestTimeout),
        ("deadline", True, RequestTimeout),
        ("bad_frame", True, StageLost),
        ("version", True, TransportClosed),
        ("identity", False, RequestError),
    ],
)
def test_error_frames_become_exceptions(code: str, ends_stream: bool, kind: type[Exception]) -> None:
    error = error_of(common_pb2.Error(code=code, message="m"), "node-a", ends_stream=ends_stream)
    assert type(error) is kind
    if isinstance(error, StageLost):
        assert error.fields == {"node": "node-a", "code": code}
    else:
        assert error.code == code
    assert type(loss(error, "node-a")) is (StageLost if kind is RequestError else kind)
