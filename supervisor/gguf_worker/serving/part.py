"""The seam for what is served with the shards, and seen on the same pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import Metric


class Part(Protocol):
    """Something that the pages show."""

    def status(self) -> dict[str, object]:
        """For the JSON of /v1/status."""

    def collect(self) -> Iterable[Metric]:
        """For /metrics, as a collector of prometheus_client."""
