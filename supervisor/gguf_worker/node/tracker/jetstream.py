"""The tracker of many machines: two key-value buckets of NATS JetStream.

A node's key holds its last registration. It is written by comparison with what the writer knows to be there,
so that the history of a key is a line: the revisions of one run, then those of a later one. An earlier run
that writes after a later one is told so. The readers' own clocks end leases; that the server forgets what is
old only keeps dead nodes from readers who come later. What a server loses (the nodes are in its memory) is
written again by whoever wrote it, as soon as there is a connection.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.clock import Clock, MonotonicClock
from gguf_worker.node.nats import Nats
from gguf_worker.node.tracker.board import Board
from gguf_worker.node.tracker.buckets import Bucket, BucketConfig, Entry
from gguf_worker.node.tracker.following import Follower
from gguf_worker.node.tracker.registration import (
    LONGEST_LEASE_S,
    MAX_CERTIFICATE_BYTES,
    MAX_REGISTRATION_BYTES,
    RegistrationRefused,
    check_certificate,
    check_registration,
    read_certificate,
    read_registration,
)
from gguf_worker.node.tracker.tracker import TrackerError, View
from gguf_worker.node.tracker.writers import CertificateWriter, NodeWriter
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

NODES: Final = "gguf-worker-nodes"
CERTIFICATES: Final = "gguf-worker-certificates"

MAX_BUCKET_BYTES: Final = 256 << 20
HEADROOM_BYTES: Final = 4096
"""Subject and headers of a message count with its value."""
COMPLAINTS_KEPT: Final = 256
"""Of what is wrong in the bucket, to be said once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JetStreamSettings:
    """How long is waited, in seconds, and how often the server keeps what it is told."""

    timeout_s: float = 3.0
    """For one answer of the server, and for what one call asks it together."""
    open_s: float = 10.0
    """Until what was published before is in the view."""
    quiet_s: float = 5.0
    """After which a watch of the nodes that says nothing is made anew."""
    certificates_quiet_s: float = 30.0
    """The same of the certificates, which are seldom anything new: each time all of them are sent."""
    retry_s: float = 0.5
    """Between attempts to watch."""
    replicas: int = 1
    """Servers of a cluster that keep each value."""


class JetStreamTracker:
    """Implements Tracker, over a connection that somebody else owns."""

    def __init__(
        self, nats: Nats, *, settings: JetStreamSettings | None = None, clock: Clock | None = None
    ) -> None:
        self._nats = nats
        self._settings = settings or JetStreamSettings()
        self._clock = clock or MonotonicClock()
        self._board = Board(self._clock)
        self._nodes = Bucket(nats, self._config_of_nodes(), self._settings.timeout_s)
        self._certificates = Bucket(nats, self._config_of_certificates(), self._settings.timeout_s)
        self._node_writer = NodeWriter(self._nodes, self._board.leases, self._clock)
        self._certificate_writer = CertificateWriter(self._certificates)
        self._complaints: set[tuple[str, str]] = set()
        self._writing = anyio.Lock()
        self._stack = AsyncExitStack()

    # ---- reading --------------------------------------------------------------------------------

    def view(self) -> View:
        """What is known now; while there is no connection, what was known before and stands."""
        return self._board.view()

    async def changed(self, view: View) -> View:
        """Returns the view when it is another one."""
        return await self._board.changed(view)

    def ages(self) -> Mapping[str, float]:
        """Seconds since a publication of each node was seen."""
        return self._board.ages()

    # ---- writing --------------------------------------------------------------------------------

    async def publish(self, registration: registration_pb2.Registration) -> None:
        """Writes it, by comparison. What could not be written is written after the next reconnection, if it
        would still stand then."""
        check_registration(registration)
        copy = registration_pb2.Registration()
        copy.CopyFrom(registration)
        async with self._writing_bounded(copy.node):
            await self._node_writer.publish(copy)

    async def withdraw(self, node: str, instance: str) -> None:
        """Deletes the node's key, where this run wrote it."""
        self._board.leases.withdrawn(node, instance)
        self._board.announce()
        async with self._writing_bounded(node):
            await self._node_writer.withdraw(node, instance)

    async def publish_certificate(self, certificate: registration_pb2.Certificate) -> None:
        """Writes it where there is none of its id."""
        check_certificate(certificate)
        copy = registration_pb2.Certificate()
        copy.CopyFrom(certificate)
        async with self._writing_bounded(f"certificate {copy.id[:12]}"):
            await self._certificate_writer.publish(copy)

    @asynccontextmanager
    async def _writing_bounded(self, what: str) -> AsyncIterator[None]:
        """One writer at a time, and none for ever. Raises TrackerError."""
        try:
            with anyio.fail_after(self._settings.timeout_s):
                async with self._writing:
                    yield
        except TimeoutError as error:
            text = f"NATS at {self._nats.url} did not take {what} within {self._settings.timeout_s:g} s"
            raise TrackerError(text, retryable=True) from error
        finally:
            self._board.announce()  # a run that turned out to be over

    # ---- following ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Raises TrackerError where the buckets cannot be read within `open_s`."""
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(plain_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            followers = (self._follower_of_nodes(), self._follower_of_certificates())
            for follower in followers:
                tasks.start_soon(follower.run)
            with anyio.move_on_after(self._settings.open_s) as patience:
                for follower in followers:
                    await follower.current.wait()
            if patience.cancelled_caught:
                raise next(
                    (follower.failure for follower in followers if follower.failure is not None),
                    TrackerError(f"the buckets of NATS at {self._nats.url} could not be read in time"),
                )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def _follower_of_nodes(self) -> Follower:
        return Follower(
            self._nats,
            self._nodes,
            self._saw_node,
            self._write_nodes_again,
            quiet_s=self._settings.quiet_s,
            retry_s=self._settings.retry_s,
        )

    def _follower_of_certificates(self) -> Follower:
        return Follower(
            self._nats,
            self._certificates,
            self._saw_certificate,
            self._write_certificates_again,
            quiet_s=self._settings.certificates_quiet_s,
            retry_s=self._settings.retry_s,
        )

    def _saw_node(self, entry: Entry) -> None:
        if entry.value is None:
            self._board.leases.withdrawn(entry.key)
        else:
            self._saw_registration(entry.key, entry.value)
        self._board.announce()

    def _saw_registration(self, key: str, value: bytes) -> None:
        try:
            registration = read_registration(value)
            if registration.node != key:
                raise RegistrationRefused(f"it is the registration of {registration.node}")
        except GgufWorkerError as error:
            self._complain(key, error)
            self._board.leases.refused(key, error.message)
            return
        self._board.leases.saw(registration)

    def _complain(self, key: str, error: GgufWorkerError) -> None:
        """Once for each thing that is wrong, however often it is published."""
        if (key, error.message) in self._complaints:
            return
        if len(self._complaints) >= COMPLAINTS_KEPT:
            self._complaints.clear()
        self._complaints.add((key, error.message))
        text = f"what is registered as {key[:64]} is not taken: {error.message}"
        log_event(log, logging.WARNING, "registration_refused", text, node=key[:64], code=error.code)

    def _saw_certificate(self, entry: Entry) -> None:
        try:
            if entry.value is None:
                self._board.leases.lost_certificate(entry.key)
            else:
                certificate = read_certificate(entry.value)
                if certificate.id != entry.key:
                    raise RegistrationRefused(f"it is certificate {certificate.id}")
                self._board.leases.saw_certificate(certificate)
        except GgufWorkerError as error:
            text = f"what is kept as certificate {entry.key[:64]} is not taken: {error.message}"
            log_event(log, logging.WARNING, "certificate_refused", text, key=entry.key[:64])
        self._board.announce()

    async def _write_nodes_again(self) -> None:
        async with self._writing_bounded("what is registered"):
            await self._node_writer.write_again()

    async def _write_certificates_again(self) -> None:
        async with self._writing_bounded("certificates"):
            await self._certificate_writer.write_again()

    def _config_of_nodes(self) -> BucketConfig:
        return BucketConfig(
            name=NODES,
            description="gguf-worker: nodes that are registered",
            age_s=LONGEST_LEASE_S,
            in_memory=True,
            max_value_bytes=MAX_REGISTRATION_BYTES + HEADROOM_BYTES,
            max_bytes=MAX_BUCKET_BYTES,
            replicas=self._settings.replicas,
        )

    def _config_of_certificates(self) -> BucketConfig:
        return BucketConfig(
            name=CERTIFICATES,
            description="gguf-worker: certificates that are known",
            age_s=None,
            in_memory=False,
            max_value_bytes=MAX_CERTIFICATE_BYTES + HEADROOM_BYTES,
            max_bytes=MAX_BUCKET_BYTES,
            replicas=self._settings.replicas,
        )
