"""The tracker of one process: the embedded default, and what tests need no server for."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import anyio.lowlevel

from gguf_worker.node.clock import Clock, MonotonicClock
from gguf_worker.node.tracker.board import Board
from gguf_worker.node.tracker.registration import check_certificate, check_registration
from gguf_worker.node.tracker.tracker import CertificateConflict, Superseded, TrackerError, View
from gguf_worker_v1 import registration_pb2


class MemoryTracker:
    """Implements Tracker."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._board = Board(clock or MonotonicClock())

    async def publish(self, registration: registration_pb2.Registration) -> None:
        """Takes a copy."""
        await anyio.lowlevel.checkpoint()
        check_registration(registration)
        node, leases = registration.node, self._board.leases
        if leases.is_over(node, registration.instance):
            raise Superseded.of(node)
        copy = registration_pb2.Registration()
        copy.CopyFrom(registration)
        if not leases.saw(copy) and node not in self.view().registrations:
            raise TrackerError(f"{node} finds no room: there are more nodes than are kept")
        self._board.announce()

    async def withdraw(self, node: str, instance: str) -> None:
        """Ends this run's registration."""
        await anyio.lowlevel.checkpoint()
        self._board.leases.withdrawn(node, instance)
        self._board.announce()

    async def publish_certificate(self, certificate: registration_pb2.Certificate) -> None:
        """Takes a copy."""
        await anyio.lowlevel.checkpoint()
        check_certificate(certificate)
        if self.view().certificates.get(certificate.id, certificate) != certificate:
            raise CertificateConflict.of(certificate)
        copy = registration_pb2.Certificate()
        copy.CopyFrom(certificate)
        self._board.leases.saw_certificate(copy)
        self._board.announce()

    def view(self) -> View:
        """What is known now."""
        return self._board.view()

    async def changed(self, view: View) -> View:
        """Returns the view when it is another one."""
        return await self._board.changed(view)

    def ages(self) -> Mapping[str, float]:
        """Seconds since each node published."""
        return self._board.ages()

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""
