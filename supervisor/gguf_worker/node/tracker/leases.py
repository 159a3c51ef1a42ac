"""What one reader knows of the nodes: whose lease runs, by its own clock, and which run of each is the last.

Pure but for the clock, which is given: the monotonic one, so that no step of the wall clock ends a lease or
prolongs one. A lease begins when this reader sees a publication, whatever the writer's clock says.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from gguf_worker.node.clock import Clock
from gguf_worker.node.tracker.registration import DEFAULT_LEASE_S
from gguf_worker.node.tracker.tracker import View
from gguf_worker_v1 import registration_pb2

MAX_NODES = 4096
"""Nodes of which something is remembered; what is published beyond them is not taken."""
MAX_ENDED = 4096
"""Runs that are remembered as over; the oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A publication, and until when it stands."""

    registration: registration_pb2.Registration | None
    """None where it was refused, for `reason`."""
    reason: str = ""
    seen_at: float
    expires_at: float


class Leases:
    """The registrations that one reader has seen and that stand, and the certificates."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._certificates: dict[str, registration_pb2.Certificate] = {}
        self._view = View()
        self._changes_shown = 0
        self.changes = 0
        """Rises with everything that makes the view another one."""
        self._look_at = math.inf
        """No lease ends before this moment; so a renewal costs nothing for the other nodes."""

    # ---- what was seen --------------------------------------------------------------------------

    def saw(self, registration: registration_pb2.Registration) -> bool:
        """A node was registered, or its lease was renewed. False for what a later publication has replaced
        already: an earlier revision, or a run of the node that is over."""
        node, instance = registration.node, registration.instance
        before = self._registration(node)
        if (node, instance) in self._ended or not self._has_room(node):
            return False
        if before is not None and before.instance != instance:
            self._end(node, before.instance)
        elif before is not None and before.revision > registration.revision:
            return False
        self._hold(node, registration.lease_ms / 1000, registration=registration)
        return True

    def refused(self, node: str, reason: str) -> None:
        """What was published under this name cannot be read. An earlier registration ends with its lease."""
        if self._registration(node) is None and self._has_room(node):
            self._hold(node, DEFAULT_LEASE_S, registration=None, reason=reason)

    def withdrawn(self, node: str, instance: str | None = None) -> None:
        """A run of the node is over; None is the one that is registered now."""
        held = self._registration(node)
        if instance is None or (held is not None and held.instance == instance):
            self.changes += self._held.pop(node, None) is not None
        if ended := instance or (held.instance if held is not None else None):
            self._end(node, ended)

    def is_over(self, node: str, instance: str) -> bool:
        """Whether another run of the node took this one's place, or it was withdrawn."""
        return (node, instance) in self._ended

    def saw_certificate(self, certificate: registration_pb2.Certificate) -> None:
        """A certificate is known."""
        self._certificates[certificate.id] = certificate
        self.changes += 1

    def lost_certificate(self, id: str) -> None:  # noqa: A002 - the certificate's own word
        """A certificate was taken back."""
        self.changes += self._certificates.pop(id, None) is not None

    def _registration(self, node: str) -> registration_pb2.Registration | None:
        """The node's, while its lease runs."""
        held = self._held.get(node)
        return held.registration if held is not None and held.expires_at > self._clock.now() else None

    def _has_room(self, node: str) -> bool:
        if len(self._held) >= MAX_NODES and node not in self._held:
            self._expire()
        return len(self._held) < MAX_NODES or node in self._held

    def _hold(
        self,
        node: str,
        lease_s: float,
        *,
        registration: registration_pb2.Registration | None,
        reason: str = "",
    ) -> None:
        now = self._clock.now()
        before = self._held.get(node)
        self.changes += before is None or (before.registration, before.reason) != (registration, reason)
        self._held[node] = _Held(
            registration=registration, reason=reason, seen_at=now, expires_at=now + lease_s
        )
        self._look_at = min(self._look_at, now + lease_s)

    def _end(self, node: str, instance: str) -> None:
        self._ended[node, instance] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    # ---- what is known --------------------------------------------------------------------------

    def view(self) -> View:
        """What stands now; the same object as long as nothing is different."""
        self._expire()
        if self._changes_shown != self.changes:
            self._view, self._changes_shown = self._make_view(), self.changes
        return self._view

    def _make_view(self) -> View:
        held = sorted(self._held.items())
        return View(
            registrations={name: one.registration for name, one in held if one.registration is not None},
            certificates=dict(sorted(self._certificates.items())),
            refused={name: one.reason for name, one in held if one.registration is None},
        )

    def ages(self) -> Mapping[str, float]:
        """Seconds since the last publication of each node was seen."""
        self._expire()
        now = self._clock.now()
        return {name: now - held.seen_at for name, held in self._held.items()}

    def next_look(self) -> float | None:
        """The first moment at which a lease may end; None where there is none."""
        return None if math.isinf(self._look_at) else self._look_at

    def _expire(self) -> None:
        now = self._clock.now()
        if now < self._look_at:
            return
        standing = {name: held for name, held in self._held.items() if held.expires_at > now}
        self.changes += len(standing) != len(self._held)
        self._held = standing
        self._look_at = min((held.expires_at for held in standing.values()), default=math.inf)
