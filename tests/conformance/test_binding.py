"""The cffi binding's own promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shard_engine
from shard_engine import Engine, Entry, Output, ShardEngineError, Status


def fake(**changes: object) -> Engine:
    return Engine("fake:vocab=256", engine="fake", **changes)  # type: ignore[arg-type]


def test_binding_lists_and_names_the_engines() -> None:
    """Both engines are in the library, and each says what it is made of."""
    assert set(shard_engine.engines()) == {"llama", "fake"}
    for name in shard_engine.engines():
        build = shard_engine.build(name)
        assert (build.engine, build.pin_matches) == (name, True)
        assert build.devices
        assert build.features.startswith("CPU : ") == (name == "llama")
        assert not build.features.endswith((" ", "|"))


def test_binding_refuses_an_engine_that_is_not_there() -> None:
    """An unknown engine is a ValueError that names those there are."""
    with pytest.raises(ValueError, match="fake"):
        Engine("fake:", engine="none")


def test_binding_raises_what_a_progress_callback_raised() -> None:
    """An exception in the callback cancels the open and comes out of it."""

    def explode(_phase: str, _done: int, _total: int) -> None:
        raise LookupError("from the callback")

    with pytest.raises(LookupError, match="from the callback"):
        fake(on_progress=explode)


def test_binding_errors_carry_status_and_fields() -> None:
    """ShardEngineError has the status, its code and the named values."""
    with fake() as engine, pytest.raises(ShardEngineError) as caught:
        engine.session_length(2)
    assert (caught.value.status, caught.value.code) == (Status.NO_SESSION, "no_session")
    assert caught.value.fields == {"session": "2"}


def test_binding_rows_outlive_the_next_call() -> None:
    """Rows are copies: a later step does not change them, nor does closing the engine."""
    with fake() as engine:
        session = engine.session_open()
        first = engine.forward(session, 0, tokens=[5, 6], output=Output.LOGITS_ALL).rows
        assert first is not None
        kept = bytes(first.data)
        second = engine.forward(session, 2, tokens=[9, 9], output=Output.LOGITS_ALL).rows
        assert second is not None
        assert second.data != kept
    assert first.data == kept
    assert first.values().shape == (2, 256)
    assert first.values().tobytes() == kept


def test_binding_refuses_part_of_a_row() -> None:
    """Hidden bytes that are not whole rows are a ValueError before the engine is asked."""
    with fake(layers=(2, 4)) as engine:
        entry = Entry(session=engine.session_open(), position=0, hidden=bytes(33))
        with pytest.raises(ValueError, match="33 bytes"):
            engine.step([entry])


def test_binding_takes_any_buffer_of_rows() -> None:
    """bytes, bytearray and memoryviews give the same rows."""
    data = bytes(range(64))
    with fake(layers=(2, 4)) as engine:
        results = []
        for hidden in (data[:32], bytearray(data[:32]), memoryview(data)[:32]):
            session = engine.session_open()
            rows = engine.forward(session, 0, hidden=hidden, output=Output.HIDDEN).rows
            assert rows is not None
            results.append(rows.data)
    assert len(set(results)) == 1


def test_binding_closed_engine_cannot_be_used() -> None:
    """Every call on a closed engine is a ValueError; closing twice is fine."""
    engine = fake()
    assert "layers 0:12" in repr(engine)
    engine.close()
    engine.close()
    assert repr(engine) == "<Engine closed>"
    with pytest.raises(ValueError, match="closed"):
        engine.session_open()


def test_binding_cancel_without_a_step_stops_the_next_one() -> None:
    """A cancel that comes early stops one step and no more."""
    with fake() as engine:
        session = engine.session_open()
        engine.cancel()
        with pytest.raises(ShardEngineError) as caught:
            engine.forward(session, 0, tokens=[5])
        assert caught.value.status == Status.CANCELLED
        assert engine.forward(session, 0, tokens=[5]).length == 1


HEADER = Path(__file__).parents[2] / "shard_engine" / "include" / "shard_engine.h"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("SHARD_ENGINE_ABI_VERSION = 3", "SHARD_ENGINE_ABI_VERSION = 4", "ABI version 4"),
        ("float bias;", "float bias, more;", "shard_logit_bias has 12 bytes"),
        ("SHARD_MESSAGE_SIZE = 1024", "SHARD_MESSAGE_SIZE = 512", "shard_error has"),
    ],
    ids=["abi version", "field", "constant"],
)
def test_binding_refuses_a_header_of_another_build(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    """A header whose structs are not the library's is an ImportError, not memory corruption."""
    text = HEADER.read_text()
    assert old in text
    other = tmp_path / "shard_engine.h"
    other.write_text(text.replace(old, new))
    child = subprocess.run(
        [sys.executable, "-c", "import shard_engine"],
        env={**os.environ, "GGUF_WORKER_SHARD_ENGINE_HEADER": str(other)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 1
    last_line = child.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError")
    assert complaint in last_line


def test_binding_without_a_library_says_how_to_get_one(tmp_path: Path) -> None:
    """A library that is not there is an ImportError that names it and the remedy."""
    missing = tmp_path / "libshard_engine.so"
    child = subprocess.run(
        [sys.executable, "-c", "import shard_engine"],
        env={**os.environ, "GGUF_WORKER_SHARD_ENGINE_LIB": str(missing)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 1
    assert f"ImportError: no libshard_engine.so (tried {missing}); install" in child.stderr
