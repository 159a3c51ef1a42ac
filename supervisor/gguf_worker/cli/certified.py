"""What certificates say of the workers of this process, by the rule that meshes have."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from gguf_worker.certification import Certificate, read_certificate
from gguf_worker.logs import log_event
from gguf_worker.node.gguf_backend import attested
from gguf_worker.node.tracker.certificates import certificate_for, certificate_message, why_not
from gguf_worker.supervision.worker import Worker
from gguf_worker_v1 import common_pb2, registration_pb2

log = logging.getLogger("gguf_worker.serve")


class Certified:
    """The certificates that a service was given."""

    def __init__(self, certificates: Sequence[Certificate]) -> None:
        messages = map(certificate_message, certificates)
        self._certificates = {message.id: message for message in messages}

    @classmethod
    def of_files(cls, paths: Sequence[Path]) -> Certified:
        """Raises OSError, and CertificateError that names the file."""
        return cls([read_certificate(path) for path in paths])

    def is_chunk_invariant(self, workers: Sequence[Worker]) -> bool:
        """Whether one of them stands for all of these workers, and says that rows have the same bits whatever
        they are computed with. The log says which it is, or why it is none."""
        stages = [attested(worker) for worker in workers]
        found = [certificate_for(stage, self._certificates) for stage in stages]
        standing = [one for one in found if one is not None]
        if len(standing) < len(found):
            self._log_unused(stages[found.index(None)])
            return False
        is_invariant = all(one.chunk_invariant for one in standing)
        _log_used(standing[0], is_invariant)
        return is_invariant

    def _log_unused(self, stage: common_pb2.Stage) -> None:
        reasons = [f"{one.id[:12]}: {why_not(stage, one)}" for one in self._certificates.values()]
        text = (
            f"no certificate that was given stands for these workers ({'; '.join(reasons)}): one that dies "
            "is brought back in the pieces of the first time"
        )
        log_event(log, logging.WARNING, "certificate_unused", text, certificates=list(self._certificates))


def _log_used(certificate: registration_pb2.Certificate, is_invariant: bool) -> None:
    how = (
        "as few pieces as possible"
        if is_invariant
        else "the pieces of the first time (it is not chunk-invariant)"
    )
    text = (
        f"certificate {certificate.id[:12]} stands for these workers: one that dies is brought back in {how}"
    )
    log_event(
        log, logging.INFO, "certificate_used", text, certificate=certificate.id, chunk_invariant=is_invariant
    )
