"""Nothing is done for a work any more when nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from gguf_worker.errors import RequestTimeout
from gguf_worker.work import Work


@contextmanager
def before_deadline(work: Work | None) -> Iterator[None]:
    """Ends what is inside at the deadline of the work: RequestTimeout, code `deadline`."""
    remaining_s = None if work is None else work.remaining_s()
    if work is None or remaining_s is None:
        yield
        return
    with anyio.move_on_after(remaining_s) as scope:
        yield
    if scope.cancelled_caught:
        raise RequestTimeout(
            "the deadline of the request has passed; ask for less or give it more time",
            code="deadline",
            fields={"request_id": work.request_id, "work_id": work.work_id},
        )
