"""The seam of a tracker: who serves what now, as far as this process knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from gguf_worker.errors import GgufWorkerError
from gguf_worker_v1 import registration_pb2


class TrackerError(GgufWorkerError):
    """Raised when a tracker cannot be told something now. What it knew before stays."""

    default_code = "tracker"


class Superseded(GgufWorkerError):
    """Raised when a run of a node publishes after a later run of the same name took its place, or after it
    was withdrawn."""

    default_code = "superseded"

    @classmethod
    def of(cls, node: str) -> Self:
        """What an earlier run of this node is told."""
        return cls(
            f"another node calls itself {node} and was started later, or this run was withdrawn (give each "
            "node a name of its own with --node)",
            fields={"node": node},
        )


class CertificateConflict(GgufWorkerError):
    """Raised when the tracker holds another certificate under the same id."""

    default_code = "certificate_conflict"

    @classmethod
    def of(cls, certificate: registration_pb2.Certificate) -> Self:
        """What the second one under an id meets."""
        return cls(
            f"the tracker holds another certificate under the id {certificate.id} (make this one again with "
            "`gguf-worker certify`)",
            fields={"id": certificate.id},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a tracker knows in one moment. Its messages are read and never changed."""

    registrations: Mapping[str, registration_pb2.Registration] = field(default_factory=dict)
    """By name of the node; only those whose lease runs."""
    certificates: Mapping[str, registration_pb2.Certificate] = field(default_factory=dict)
    """By id."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why a node's publication is not among the registrations, by the name that it was published under."""


class Tracker(Protocol):
    """A tracker, open. What is published comes into the view of every reader of the same tracker."""

    async def publish(self, registration: registration_pb2.Registration) -> None:
        """Puts it in the place of the node's earlier one; publishing again renews the lease. Raises
        RegistrationRefused, Superseded, and TrackerError (retryable) within a bounded time."""

    async def withdraw(self, node: str, instance: str) -> None:
        """Takes back what this run of the node published; nothing where a later run took its place. The run
        publishes no more. Raises TrackerError within a bounded time."""

    async def publish_certificate(self, certificate: registration_pb2.Certificate) -> None:
        """Makes it known, for good. Raises RegistrationRefused, CertificateConflict and TrackerError."""

    def view(self) -> View:
        """What is known now; the same object as long as nothing is different."""

    async def changed(self, view: View) -> View:
        """Returns the view when it is another one than `view`."""

    def ages(self) -> Mapping[str, float]:
        """Seconds since the last publication of each node in the view was seen."""

    async def __aenter__(self) -> Self:
        """Opens it; what was published before is in the view."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it. Nothing is withdrawn."""
