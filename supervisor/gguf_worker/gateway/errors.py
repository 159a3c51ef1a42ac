"""What goes wrong, in OpenAI's shape: a status, and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math

from gguf_worker.errors import GgufWorkerError, RequestTimeout, StageLost, WorkerStopped

INVALID = "invalid_request_error"
CLIENT_GONE = 499
"""Of no answer, because nobody is there to read one; for logs."""
LONGEST_MESSAGE = 2000
"""Characters of what a client is told, which may quote what it sent."""

_REFUSED = frozenset({"argument", "malformed", "position", "schema", "token", "unsupported", "values"})
"""Codes of stages that refuse what the client asked for."""
_LATER = frozenset({"busy", "capacity", "draining", "memory", "no_route", "not_ready", "stopped"})
"""Codes of what may be had later."""
_LATE = frozenset({"deadline", "timeout"})


class ApiError(GgufWorkerError):
    """Raised for a request that is answered with an error."""

    default_code = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, code=code, retryable=retry_after_s is not None)
        self.status = status
        self.kind = kind
        """OpenAI calls it `type`."""
        self.param = param
        """The parameter that is to blame."""
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, object]:
        """What the client gets."""
        message, param = _shortened(self.message), self.param and _shortened(self.param)
        return {"error": {"message": message, "type": self.kind, "param": param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def unavailable(message: str, *, code: str, retry_after_s: float = 1.0) -> ApiError:
    """It may be had later."""
    return ApiError(message, status=503, kind="server_error", code=code, retry_after_s=retry_after_s)


def api_error(error: Exception) -> ApiError:
    """Any error, as a client is told of it. What was not foreseen is told without its words."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, GgufWorkerError):
        return ApiError(
            "this request met an error in the server, whose log says more",
            status=500,
            kind="server_error",
            code="internal_error",
        )
    if isinstance(error, RequestTimeout) or error.code in _LATE:
        return ApiError(error.message, status=504, kind="server_error", code=error.code)
    if isinstance(error, StageLost | WorkerStopped) or error.code in _LATER:
        return unavailable(error.message, code=error.code)
    if error.code in _REFUSED:
        return ApiError(error.message, code=error.code)
    return ApiError(error.message, status=500, kind="server_error", code=error.code)
