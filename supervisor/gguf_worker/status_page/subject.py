"""The seam between the page and whatever it is about: a service's shards, or a gateway over a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

from gguf_worker.status_page.ring import Ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One look at it."""

    status: dict[str, object]
    """The JSON of /v1/status."""
    done: int
    """So many units it has done so far; 0 again where it began anew."""
    unit: Literal["tokens", "rows"]
    """Drawn tokens; or computed rows, where nothing here draws."""


class Subject(Protocol):
    """What a page shows."""

    @property
    def generations(self) -> Ring[dict[str, object]]:
        """The last ones that ended, as JSON."""

    async def look(self) -> Picture:
        """One look, within a few seconds."""

    def next_change(self) -> anyio.Event:
        """Set when it is worth another look before it is time; to be taken before looking."""
