"""Requests that may take as long as they make progress."""

from __future__ import annotations

import math
from typing import TypeVar

from gguf_worker.protocol.messages import Answer, Request
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.life import Life

AnswerT = TypeVar("AnswerT", bound=Answer)


async def watched_request(
    life: Life, request: Request, answer: type[AnswerT], *, on_progress: ProgressCallback | None = None
) -> AnswerT:
    """Sends a request that has no deadline, and waits for its answer for as long as there is progress.

    A worker without any is killed by its life's HangWatch, and the request fails with WorkerDied of cause
    `hang`.
    """
    return await life.channel.request(request, answer, timeout_s=math.inf, on_progress=on_progress)
