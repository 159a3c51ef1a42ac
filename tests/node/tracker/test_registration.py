"""Registrations: what a node says, and what is not taken from outside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

import registered
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node import versions
from gguf_worker.node.tracker.registration import (
    MAX_CERTIFICATES,
    MAX_ENDPOINTS,
    MAX_REGISTRATION_BYTES,
    MAX_STAGES,
    RegistrationRefused,
    make_registration,
    read_certificate,
    read_registration,
)
from gguf_worker.node.versions import VersionRefused
from gguf_worker_v1 import common_pb2, registration_pb2
from registered import registration, stage

Registration = registration_pb2.Registration


def test_registration_comes_back_as_it_was() -> None:
    made = registration("node-a", stage(0, 10), stage(10, 30, state="draining"))
    assert read_registration(made.SerializeToString()) == made


def test_only_what_attested_something_is_registered() -> None:
    """A stage that starts, or failed, is not told of."""
    made = registration(
        "node-a", common_pb2.Stage(state="starting"), stage(0, 10), stage(10, 20, state="failed")
    )
    assert [(one.identity.start, one.state) for one in made.stages] == [(0, "ready")]
    assert made.version == versions.version()
    assert made.pipe_protocol >= 1


def test_only_certificates_of_its_stages_are_registered() -> None:
    mine, other = (
        registered.certificate(),
        registered.certificate(artifact=registered.digest("another model")),
    )
    made = make_registration(
        node="node-a", instance="run1", software="", stages=[stage(0, 10)], certificates=[other, mine, mine]
    )
    assert list(made.certificate_ids) == [mine.id]


def test_newer_major_version_is_refused_with_both_numbers() -> None:
    made = registration("node-a")
    made.version.major = versions.MAJOR + 1
    with pytest.raises(VersionRefused) as refused:
        read_registration(made.SerializeToString())
    assert f"{versions.MAJOR + 1}." in refused.value.message
    assert f"{versions.MAJOR}.{versions.MINOR}" in refused.value.message


def test_newer_minor_version_with_unknown_fields_is_read() -> None:
    """Fields that are not known stay in the message, and mean nothing."""
    made = registration("node-a", stage(0, 10))
    made.version.minor = versions.MINOR + 7
    unknown = b"\xfa\x3e\x03new"  # field 1007, three bytes
    read = read_registration(made.SerializeToString() + unknown)
    assert read.node == "node-a"
    fields = UnknownFieldSet(read)
    assert [fields[index].field_number for index in range(len(fields))] == [1007]


def _second_endpoint(made: Registration) -> None:
    made.endpoints.extend([made.endpoints[0]] * MAX_ENDPOINTS)


FAULTS: dict[str, Callable[[Registration], object]] = {
    "node": lambda made: setattr(made, "node", "no/name"),
    "node 'x": lambda made: setattr(made, "node", "x" * 64),
    "instance": lambda made: setattr(made, "instance", ""),
    "lease of 0 s": lambda made: setattr(made, "lease_ms", 0),
    "lease of 3600 s": lambda made: setattr(made, "lease_ms", 3_600_000),
    "endpoints": _second_endpoint,
    "stages": lambda made: made.stages.extend([made.stages[0]] * MAX_STAGES),
    "certificates": lambda made: made.certificate_ids.extend(["c"] * (MAX_CERTIFICATES + 1)),
    "address": lambda made: setattr(made.endpoints[0], "address", "x" * 2000),
    "ready": lambda made: setattr(made.stages[0], "state", "starting"),
    "in no state": lambda made: made.stages[0].ClearField("state"),
    "sha256": lambda made: setattr(made.stages[0].identity, "artifact", "ABC"),
    "shard": lambda made: setattr(made.stages[0].identity, "shard", "ABC"),
    "no range": lambda made: setattr(made.stages[0].identity, "end", 0),
    "no range of": lambda made: setattr(made.stages[0].model, "n_layer", 5),
    "recipe of 0": lambda made: made.stages[0].identity.recipe.clear(),
    "recipe is longer": lambda made: made.stages[0].identity.recipe.update({"x": "y" * 2000}),
    "9 layers of": lambda made: setattr(made.stages[0].ownership, "owned_layers", 9),
    "0:11 were": lambda made: setattr(made.stages[0].ownership, "end", 11),
    "build class": lambda made: setattr(made.stages[0].build, "build_class", ""),
    "capacity": lambda made: setattr(made.stages[0].capacity, "max_sessions", 0),
    "row bytes are 0": lambda made: setattr(made.stages[0].capacity, "row_bytes", 0),
    "prefill chunk": lambda made: setattr(made.stages[0].capacity, "prefill_chunk", 0),
    "context": lambda made: setattr(made.stages[0].capacity, "n_ctx", 0),
    "batch": lambda made: setattr(made.stages[0].capacity, "max_batch", 0),
    "text is longer": lambda made: setattr(made.stages[0].model, "name", "x" * 2000),
    "a text is longer": lambda made: setattr(made.stages[0].model, "architecture", "x" * 2000),
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_no_node_may_say_is_refused(words: str) -> None:
    """With the reason, and the node's name."""
    made = registration("node-a", stage(0, 10))
    FAULTS[words](made)
    with pytest.raises(RegistrationRefused, match=words) as refused:
        read_registration(made.SerializeToString())
    assert refused.value.fields["node"] == made.node[:64]


def test_size_is_bounded_before_anything_is_read() -> None:
    with pytest.raises(RegistrationRefused, match=str(MAX_REGISTRATION_BYTES)):
        read_registration(bytes(MAX_REGISTRATION_BYTES + 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_registration, read_certificate):
        with suppress(GgufWorkerError):
            read(data)


@given(st.data())
def test_changed_bytes_are_read_or_refused(data: st.DataObject) -> None:
    """Of a registration with a byte changed, added or lost."""
    good = bytearray(registration("node-a", stage(0, 10)).SerializeToString())
    at = data.draw(st.integers(0, len(good) - 1))
    good[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    with suppress(GgufWorkerError):
        read_registration(bytes(good))


def test_certificate_with_another_id_than_a_digest_is_refused() -> None:
    made = registered.certificate()
    assert read_certificate(made.SerializeToString()) == made
    made.id = "mine"
    with pytest.raises(RegistrationRefused, match="id is no sha256"):
        read_certificate(made.SerializeToString())
