"""The code that reads maps takes and refuses what the readers of the single keys do, in the same words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_worker import _schema
from gguf_worker._schema import SchemaError, WireMap
from gguf_worker._schema_code import MISSING
from gguf_worker.errors import RemoteProtocolError
from gguf_worker.identity import Recipe
from gguf_worker.protocol.messages import (
    TO_HOST,
    TO_WORKER,
    Candidate,
    Output,
    Result,
    Sampling,
    decode_message,
)
from golden import make_golden

CLASSES = tuple(dict.fromkeys([*TO_HOST.values(), *TO_WORKER.values(), Candidate, Recipe, Sampling]))

NUMBERS = (0, 1, -1, 2**30 - 1, 2**30, -(2**30), 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**64 - 1, 2**64)
TEXTS = ("", "f32", "token", "text", b"", b"token", b"1234")
LISTS: tuple[Any, ...] = ((), [], [1], {}, {"token": 1, "logprob": -1.0, "text": b"a"})
values = st.sampled_from([*NUMBERS, 0.0, -0.5, 1e300, True, False, None, *TEXTS, *LISTS])


def usual_result(**changes: Any) -> dict[str, Any]:
    return {**make_golden.result(1, "token", token=7, logprob=-0.5, text=b"a"), **changes}


def key_by_key(cls: type[WireMap], said: dict[str, Any]) -> WireMap:
    """The same, by nothing but the reader of each key."""
    read: dict[str, Any] = {}
    for key in _schema._keys_of(cls):
        if key.name in said or key.default is MISSING:
            read[key.name] = key.read(said.get(key.name, MISSING))
    return cls(**read)


def outcome(read: Any, *arguments: Any) -> str:
    """What it gives, or how it refuses. As text: 1 is not 1.0, nor True."""
    try:
        return repr(read(*arguments))
    except SchemaError as error:
        return f"refused: {error}"


@given(data=st.data())
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_any_map_is_read_as_its_keys_are(cls: type[WireMap], data: st.DataObject) -> None:
    """Whatever is in a map and whatever is missing."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    said = data.draw(st.dictionaries(st.sampled_from(names), values) if names else st.just({}))
    assert outcome(cls.from_map, said) == outcome(key_by_key, cls, said)


@given(
    changes=st.dictionaries(st.sampled_from([*usual_result(), "rows", "hidden", "top"]), values, max_size=2)
)
def test_result_with_something_wrong_is_read_as_its_keys_are(changes: dict[str, Any]) -> None:
    """A result that is right but for a key or two."""
    said = usual_result(**changes)
    assert outcome(Result.from_map, said) == outcome(key_by_key, Result, said)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"length": "1"}, "key 'length': expected an integer, not str"),
        ({"length": True}, "key 'length': expected an integer, not bool"),
        ({"length": -1}, "key 'length': -1 is not between 0 and 18446744073709551615"),
        ({"session": 0}, "key 'session': 0 is not between 1 and 18446744073709551615"),
        ({"token": 2**31}, "key 'token': 2147483648 is not between -2147483648 and 2147483647"),
        ({"output": "tokens"}, "key 'output': 'tokens' is none of none, hidden, logits"),
        ({"output": 1}, "key 'output': expected text, not int"),
        ({"logprob": None}, "key 'logprob': expected a number, not nil"),
        ({"end_of_generation": 1}, "key 'end_of_generation': expected a bool, not int"),
        ({"hidden": "row"}, r"key 'hidden': expected rows \(bin\), not str"),
        ({"dtype": "f8"}, "dtype 'f8' is none of"),
    ],
)
def test_malformed_result_is_told_with_its_key(changes: dict[str, Any], reason: str) -> None:
    """A worker that answers nonsense is not believed, and a person finds out what was wrong."""
    with pytest.raises(RemoteProtocolError, match=f"'result': {reason}"):
        decode_message({"type": "result", "id": 1, **usual_result(**changes)}, TO_HOST)


def test_result_without_a_key_names_it() -> None:
    """What is required is missed by name, in the order of the document."""
    said = usual_result()
    del said["length"], said["queue_us"]
    with pytest.raises(SchemaError, match=r"^key 'length' is missing$"):
        Result.from_map(said)


def test_what_is_read_is_what_is_made() -> None:
    """An instance that was read is of its own class, frozen, and equals one that was made by hand."""
    read = Candidate.from_map({"token": 1, "logprob": -1, "text": "a"})
    made = Candidate(token=1, logprob=-1.0, text=b"a")
    assert (read, hash(read), type(read)) == (made, hash(made), Candidate)
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.token = 2  # type: ignore[misc]


def test_text_as_bin_is_text() -> None:
    """A worker may write its text as `bin`."""
    said = usual_result(output=b"token", dtype=b"f32")
    assert Result.from_map(said) == Result.from_map(usual_result())
    assert Result.from_map(said).output is Output.TOKEN
