"""A service as its status page shows it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from gguf_worker.serving.service import Service
from gguf_worker.serving.shard import Look
from gguf_worker.serving.status import service_status
from gguf_worker.status_page.ring import Ring
from gguf_worker.status_page.subject import Picture


class ServiceShown:
    """A service's shards. `generations` are those of whoever generates with them; a service itself does
    not."""

    def __init__(self, service: Service, generations: Ring[dict[str, object]] | None = None) -> None:
        self._service = service
        self._generations: Ring[dict[str, object]] = Ring(0) if generations is None else generations

    @property
    def generations(self) -> Ring[dict[str, object]]:
        return self._generations

    async def look(self) -> Picture:
        """A worker that does not answer costs a second."""
        looks = await self._service.look()
        status = service_status(self._service, looks)
        if draws(looks):
            tokens = max((look.metrics.totals.tokens_sampled for look in looks), default=0)
            return Picture(status=status, done=tokens, unit="tokens")
        rows = max(look.metrics.totals.rows for look in looks)
        return Picture(status=status, done=rows, unit="rows")

    def next_change(self) -> anyio.Event:
        return self._service.next_change()


def draws(looks: Sequence[Look]) -> bool:
    """Whether a shard draws tokens, or may: it is not known before it is loaded."""
    owned = [look.metrics.ownership for look in looks]
    return not owned or any(ownership is None or ownership.output_head for ownership in owned)
