"""A node's registration: made from what its stages attest, and checked where it comes from outside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node import versions
from gguf_worker.node.backend import ModelBackend
from gguf_worker.protocol.limits import PROTOCOL_MAX
from gguf_worker_v1 import common_pb2, registration_pb2

DEFAULT_LEASE_S: Final = 6.0
LONGEST_LEASE_S: Final = 12.0
"""No registration stands for longer without being renewed; a store may forget what is older."""
SHORTEST_LEASE_S: Final = 0.05

MAX_REGISTRATION_BYTES: Final = 512 << 10
MAX_CERTIFICATE_BYTES: Final = 64 << 10
MAX_STAGES: Final = 256
MAX_ENDPOINTS: Final = 16
MAX_CERTIFICATES: Final = 256
MAX_RECIPE_FIELDS: Final = 256
MAX_TEXT: Final = 1024

READY: Final = "ready"
DRAINING: Final = "draining"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class RegistrationRefused(GgufWorkerError):
    """Raised when a registration or certificate is not what it must be; fields name the node."""

    default_code = "registration"


# ---- making one ---------------------------------------------------------------------------------


def make_registration(
    *,
    node: str,
    instance: str,
    software: str,
    stages: Iterable[common_pb2.Stage],
    endpoints: Sequence[registration_pb2.Endpoint] = (),
    certificates: Iterable[registration_pb2.Certificate] = (),
    lease_s: float = DEFAULT_LEASE_S,
    draining: bool = False,
) -> registration_pb2.Registration:
    """What a node says of itself, without a revision. Stages that attested nothing yet, or are not there any
    more, are left out; so are certificates that belong to none of the others."""
    served = [stage for stage in stages if stage.state in (READY, DRAINING)]
    return registration_pb2.Registration(
        version=versions.version(),
        node=node,
        instance=instance,
        software=software,
        endpoints=endpoints,
        stages=served,
        certificate_ids=sorted(
            {certificate.id for certificate in certificates if _is_for_any(certificate, served)}
        ),
        pipe_protocol=PROTOCOL_MAX,
        lease_ms=round(lease_s * 1000),
        draining=draining,
    )


def described(backends: Iterable[ModelBackend]) -> list[common_pb2.Stage]:
    """What backends say of themselves now."""
    return [backend.describe() for backend in backends]


def _is_for_any(certificate: registration_pb2.Certificate, stages: Sequence[common_pb2.Stage]) -> bool:
    return any(
        certificate.artifact == stage.identity.artifact and certificate.recipe == stage.identity.recipe
        for stage in stages
    )


# ---- reading one --------------------------------------------------------------------------------


def read_registration(data: bytes) -> registration_pb2.Registration:
    """A registration from outside. Fields that are not known are kept and mean nothing. Raises
    RegistrationRefused, and VersionRefused for another major version."""
    _check_size(data, MAX_REGISTRATION_BYTES, "registration")
    try:
        registration = registration_pb2.Registration.FromString(data)
    except DecodeError as error:
        raise RegistrationRefused(f"{len(data)} bytes are no registration: {error}") from error
    check_registration(registration)
    return registration


def read_certificate(data: bytes) -> registration_pb2.Certificate:
    """A certificate from outside. Raises RegistrationRefused."""
    _check_size(data, MAX_CERTIFICATE_BYTES, "certificate")
    try:
        certificate = registration_pb2.Certificate.FromString(data)
    except DecodeError as error:
        raise RegistrationRefused(f"{len(data)} bytes are no certificate: {error}") from error
    check_certificate(certificate)
    return certificate


def check_registration(registration: registration_pb2.Registration) -> None:
    """Raises RegistrationRefused for what no node may say, and VersionRefused for another major version."""
    versions.check(registration.version)
    fault = _registration_fault(registration)
    if fault is not None:
        raise RegistrationRefused(
            f"the registration of {registration.node[:64]!r} is refused: {fault}",
            fields={"node": registration.node[:64]},
        )


def check_certificate(certificate: registration_pb2.Certificate) -> None:
    """Raises RegistrationRefused for what cannot be a certificate."""
    for name, digest in (("id", certificate.id), ("artifact", certificate.artifact)):
        if not _DIGEST.fullmatch(digest):
            raise RegistrationRefused(
                f"certificate {certificate.id[:64]!r} is refused: its {name} is no sha256 of 64 digits"
            )
    if fault := _recipe_fault(certificate.recipe):
        raise RegistrationRefused(f"certificate {certificate.id} is refused: {fault}")


def _check_size(data: bytes, limit: int, what: str) -> None:
    if len(data) > limit:
        raise RegistrationRefused(f"a {what} of {len(data)} bytes is more than the {limit} that are read")


def is_name(text: str) -> bool:
    """Whether a node may have this name: 1 to 63 letters, digits, - and _, and a letter or digit first."""
    return _NAME.fullmatch(text) is not None


def _registration_fault(registration: registration_pb2.Registration) -> str | None:
    for name, text in (("node", registration.node), ("instance", registration.instance)):
        if not is_name(text):
            return (
                f"{name} {text[:64]!r} is no name: 1 to 63 letters, digits, - and _, a letter or digit first"
            )
    for what, count, most in (
        ("stages", len(registration.stages), MAX_STAGES),
        ("endpoints", len(registration.endpoints), MAX_ENDPOINTS),
        ("certificates", len(registration.certificate_ids), MAX_CERTIFICATES),
    ):
        if count > most:
            return f"{count} {what} are more than {most}"
    lease_s = registration.lease_ms / 1000
    if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
        return f"a lease of {lease_s:g} s is not within {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} s"
    if any(len(endpoint.address) > MAX_TEXT for endpoint in registration.endpoints):
        return f"an address is longer than {MAX_TEXT} characters"
    faults = (stage_fault(stage) for stage in registration.stages)
    return next((fault for fault in faults if fault is not None), None)


def stage_fault(stage: common_pb2.Stage) -> str | None:
    """What is wrong with a stage for itself, whoever serves it; None where it may be part of a route."""
    identity, ownership = stage.identity, stage.ownership
    layers = f"layers {identity.start}:{identity.end}"
    if stage.state not in (READY, DRAINING):
        return f"{layers} are {stage.state[:32] or 'in no state'!r}: a node serves what is ready or draining"
    if not (
        _DIGEST.fullmatch(identity.artifact) and (not identity.shard or _DIGEST.fullmatch(identity.shard))
    ):
        return f"{layers} name an artifact or shard that is no sha256 of 64 digits"
    if not identity.start < identity.end <= stage.model.n_layer:
        return f"{layers} are no range of a model with {stage.model.n_layer} layers"
    if fault := _recipe_fault(identity.recipe):
        return f"{layers}: {fault}"
    attested = (ownership.start, ownership.end, ownership.owned_layers)
    if attested != (identity.start, identity.end, identity.end - identity.start):
        return f"{layers}: {attested[2]} layers of {attested[0]}:{attested[1]} were attested"
    if not (stage.build.engine and stage.build.build_class and stage.capacity.max_sessions):
        return f"{layers}: engine, build class or capacity were not attested"
    sizes = stage.capacity
    if not (sizes.n_ctx and sizes.prefill_chunk and sizes.max_batch and sizes.row_bytes):
        return f"{layers}: context, prefill chunk, batch or row bytes are 0"
    build, model = stage.build, stage.model
    texts = (build.engine, build.build_class, build.library_commit, model.name, model.architecture)
    if any(len(text) > MAX_TEXT for text in texts):
        return f"{layers}: a text is longer than {MAX_TEXT} characters"
    return None


def _recipe_fault(recipe: Mapping[str, str]) -> str | None:
    if not 0 < len(recipe) <= MAX_RECIPE_FIELDS:
        return f"a recipe of {len(recipe)} fields is none"
    texts = dict(recipe)  # a protobuf map is slow to walk
    if max(map(len, (*texts, *texts.values()))) > MAX_TEXT:
        return f"a field of the recipe is longer than {MAX_TEXT} characters"
    return None
