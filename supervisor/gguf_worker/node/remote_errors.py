"""What a client of a stage makes of its errors and of the end of its stream."""

from __future__ import annotations

from typing import Final

from gguf_worker.errors import GgufWorkerError, RequestError, RequestTimeout, StageLost
from gguf_worker.node.transport import TransportClosed
from gguf_worker_v1 import common_pb2

STAGE_GONE: Final = ("worker_died", "stopped", "draining", "not_ready")
"""Codes of a stage that holds no session of ours: the work goes on with another one, or after a while."""

OWN_FAULT: Final = ("unauthenticated", "version", "too_large")
"""Ends of a stream that another stage, or the next attempt, would not mend."""

TOO_LATE: Final = ("timeout", "deadline")


def error_of(error: common_pb2.Error, node: str, *, ends_stream: bool = False) -> GgufWorkerError:
    """The exception that an error frame stands for: StageLost where the stage is gone or the stream ends,
    RequestTimeout where it was too late, RequestError for everything else."""
    fields = dict(error.fields)
    if error.code in TOO_LATE:
        return RequestTimeout(error.message, code=error.code, fields=fields)
    if ends_stream and error.code in OWN_FAULT:
        return TransportClosed(error.message, code=error.code, fields=fields)
    if ends_stream or error.code in STAGE_GONE:
        return _lost(error.message, node, error.code, fields)
    return RequestError(error.message, code=error.code, retryable=error.retryable, fields=fields)


def loss(error: GgufWorkerError, node: str) -> GgufWorkerError:
    """What the end of a stream is to those who wait for an answer, and to those who ask later."""
    if isinstance(error, StageLost | RequestTimeout) or error.code in OWN_FAULT:
        return error
    if error.code in TOO_LATE:
        return RequestTimeout(error.message, code=error.code, fields=error.fields)
    return _lost(error.message, node, error.code, error.fields)


def _lost(message: str, node: str, code: str, fields: dict[str, str]) -> StageLost:
    return StageLost(f"node {node}: {message}", retryable=True, fields={**fields, "node": node, "code": code})
