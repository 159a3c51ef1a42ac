"""A gateway over a mesh as its status page shows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import anyio

import gguf_worker
from gguf_worker.gateway.gateway import Gateway
from gguf_worker.status_page.ring import Ring
from gguf_worker.status_page.subject import Picture

Routes = Callable[[], Mapping[str, Sequence[Mapping[str, object]]]]
"""Gives each model's stages, in order, with the fields that /v1/status has of a worker, as far as they are
known, and the `node`."""


class GatewayShown:
    """What a gateway serves, and how it goes."""

    def __init__(self, gateway: Gateway, routes: Routes, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway = gateway
        self._routes = routes
        self._clock = clock
        self._began = clock()

    @property
    def generations(self) -> Ring[dict[str, object]]:
        return self._gateway.figures.recent

    async def look(self) -> Picture:
        return Picture(status=self.status(), done=self._gateway.figures.drawn, unit="tokens")

    def next_change(self) -> anyio.Event:
        """None that is told: the next look is soon enough."""
        return anyio.Event()

    def status(self) -> dict[str, object]:
        """For JSON."""
        routes = self._routes()
        return {
            "phase": "draining" if self._gateway.is_draining else "ready" if routes else "starting",
            "version": gguf_worker.__version__,
            "pid": os.getpid(),
            "uptime_s": round(self._clock() - self._began, 3),
            "routes": [{"model": model, "stages": list(stages)} for model, stages in sorted(routes.items())],
            "gateway": self._gateway.status(),
        }
