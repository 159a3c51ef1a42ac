"""Nothing is done for a work any more when nobody waits for it."""

from __future__ import annotations

from types import TracebackType

import anyio

from gguf_worker.errors import RequestTimeout
from gguf_worker.work import Work


class before_deadline:
    """Ends what is inside at the deadline of the work: RequestTimeout, code `deadline`.

    A context manager, and a plain class because each token enters one.
    """

    __slots__ = ("_scope", "_work")

    def __init__(self, work: Work | None) -> None:
        self._work = work

    def __enter__(self) -> None:
        remaining_s = None if self._work is None else self._work.remaining_s()
        self._scope = None if remaining_s is None else anyio.move_on_after(remaining_s).__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        scope, work = self._scope, self._work
        if scope is None or work is None:
            return None
        is_taken = scope.__exit__(kind, error, trace)
        if scope.cancelled_caught:
            raise RequestTimeout(
                "the deadline of the request has passed; ask for less or give it more time",
                code="deadline",
                fields={"request_id": work.request_id, "work_id": work.work_id},
            )
        return is_taken
