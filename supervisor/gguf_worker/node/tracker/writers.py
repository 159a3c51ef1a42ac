"""Writing registrations and certificates into buckets, by comparison. One call at a time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.clock import Clock
from gguf_worker.node.tracker.buckets import Bucket, Conflict, Entry
from gguf_worker.node.tracker.leases import Leases
from gguf_worker.node.tracker.registration import read_certificate, read_registration
from gguf_worker.node.tracker.tracker import CertificateConflict, Superseded, TrackerError
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

ATTEMPTS: Final = 8
"""To write a key that others write as well."""


@dataclass(slots=True)
class _Own:
    """What a node in this process published last, or tried to."""

    registration: registration_pb2.Registration
    tried_at: float
    revision: int = 0
    """Of the bucket, as far as it is known."""
    was_written: bool = False


class NodeWriter:
    """Registrations of the nodes in this process.

    A key is written with the revision that is known to be there, so that its history is a line: the revisions
    of one run of a node, then those of a later one.
    """

    def __init__(self, bucket: Bucket, leases: Leases, clock: Clock) -> None:
        self._bucket = bucket
        self._leases = leases
        self._clock = clock
        self._own: dict[str, _Own] = {}
        self._replaced: set[tuple[str, str]] = set()

    async def publish(self, registration: registration_pb2.Registration) -> None:
        """Puts it in the place of an earlier one. Raises Superseded, and TrackerError."""
        self._check_not_over(registration)
        node, now = registration.node, self._clock.now()
        own = self._own.get(node)
        if own is None or own.registration.instance != registration.instance:
            own = _Own(registration, now)
        elif own.registration.revision > registration.revision:
            return
        own.registration, own.tried_at = registration, now
        self._own[node] = own
        await self._write(own)

    async def withdraw(self, node: str, instance: str) -> None:
        """Deletes the key, where this run wrote it."""
        self._forget(node, instance)
        for _ in range(ATTEMPTS):
            found = await self._bucket.get(node)
            before = None if found is None else _registration_of(found)
            if found is None or before is None or before.instance != instance:
                return
            try:
                await self._bucket.delete(node, last=found.revision)
                return
            except Conflict:
                continue

    async def write_again(self) -> None:
        """What the server does not know any more, or never heard of, and would still stand. No lease is
        renewed by that."""
        for node, own in tuple(self._own.items()):
            own.revision = 0  # in a bucket that was made anew it is another writing's
            is_stale = self._clock.now() - own.tried_at > own.registration.lease_ms / 1000
            if is_stale or await self._bucket.get(node) is not None:
                continue
            try:
                self._check_not_over(own.registration)
                await self._write(own)
            except Superseded as error:  # the node itself hears of it at its next publication
                log_event(log, logging.ERROR, "superseded", error.message, node=node)

    async def _write(self, own: _Own) -> None:
        node, lease_s = own.registration.node, own.registration.lease_ms / 1000
        data = own.registration.SerializeToString()
        for _ in range(ATTEMPTS):
            try:
                own.revision = await self._bucket.put(node, data, last=own.revision, ttl_s=lease_s)
            except Conflict:
                own.revision = await self._take_over(own)
                self._check_not_over(own.registration)
                continue
            own.was_written = True
            return
        raise _contended(node)

    async def _take_over(self, own: _Own) -> int:
        """The revision to replace: of this run's own earlier writing, or of a run that came before it."""
        node = own.registration.node
        found = await self._bucket.get(node)
        if found is None:
            return 0
        before = _registration_of(found)
        if before is not None and before.instance != own.registration.instance:
            if own.was_written and (node, before.instance) not in self._replaced:
                self._leases.withdrawn(node, own.registration.instance)
            else:
                self._replaced.add((node, before.instance))
        return found.revision

    def _check_not_over(self, registration: registration_pb2.Registration) -> None:
        """Raises Superseded."""
        node, instance = registration.node, registration.instance
        if self._leases.is_over(node, instance):
            self._forget(node, instance)
            raise Superseded.of(node)

    def _forget(self, node: str, instance: str) -> None:
        own = self._own.get(node)
        if own is not None and own.registration.instance == instance:
            del self._own[node]


class CertificateWriter:
    """Certificates that nodes in this process know. Each id is written once."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._own: dict[str, registration_pb2.Certificate] = {}

    async def publish(self, certificate: registration_pb2.Certificate) -> None:
        """Writes it where there is none of its id. Raises CertificateConflict, and TrackerError."""
        self._own[certificate.id] = certificate
        try:
            await self._write(certificate)
        except CertificateConflict:
            del self._own[certificate.id]
            raise

    async def write_again(self) -> None:
        """What the server does not know any more, or never heard of."""
        for certificate in tuple(self._own.values()):
            try:
                await self._write(certificate)
            except CertificateConflict as error:
                log_event(log, logging.ERROR, "certificate_conflict", error.message, id=certificate.id)

    async def _write(self, certificate: registration_pb2.Certificate) -> None:
        data = certificate.SerializeToString(deterministic=True)
        last = 0
        for _ in range(ATTEMPTS):
            try:
                await self._bucket.put(certificate.id, data, last=last)
                return
            except Conflict:
                found = await self._bucket.get(certificate.id)
            there = None if found is None else _certificate_of(found)
            if there is not None and there != certificate:
                raise CertificateConflict.of(certificate)
            if there is not None:
                return
            last = 0 if found is None else found.revision
        raise _contended(f"certificate {certificate.id}")


def _contended(what: str) -> TrackerError:
    return TrackerError(f"{what} is written by others all the time", retryable=True)


def _certificate_of(entry: Entry) -> registration_pb2.Certificate | None:
    """What a key holds; None for what is deleted or cannot be read, which nobody needs to keep."""
    try:
        return None if entry.value is None else read_certificate(entry.value)
    except GgufWorkerError:
        return None


def _registration_of(entry: Entry) -> registration_pb2.Registration | None:
    """The same of a node's key."""
    try:
        return None if entry.value is None else read_registration(entry.value)
    except GgufWorkerError:
        return None
