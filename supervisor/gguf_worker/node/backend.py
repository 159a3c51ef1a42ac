"""The seam of a node service: whatever computes a stage. Nothing behind it is known to registration, routes,
streams, telemetry and receipts; `GgufBackend` is one implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gguf_worker._schema import Buffer
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.work import Work
from gguf_worker_v1 import common_pb2


class BackendSession(Protocol):
    """One session. One task at a time uses it; cancelling that task cancels what it waits for."""

    @property
    def position(self) -> int:
        """Rows that it holds."""

    @property
    def kv_cells(self) -> int:
        """KV cells that it takes."""

    async def forward(
        self, *, position: int, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output
    ) -> Result:
        """Appends rows. Raises RequestError where `position` is not what the session holds, and for whatever
        else the stage refuses; StageLost where the stage is gone."""

    async def trim(self, position: int) -> int:
        """Forgets rows from `position` on; gives the KV cells that became free."""

    async def fork(self, position: int, sampling: Sampling, work: Work) -> BackendSession:
        """A new session with the first `position` rows of this one."""

    async def close(self) -> int:
        """Ends it, in any state, and gives the KV cells that became free. Never raises: a stage that is gone
        holds no cells."""


class ModelBackend(Protocol):
    """One stage. Every call may come at any time and from any number of tasks."""

    def describe(self) -> common_pb2.Stage:
        """What it holds, attested by what computes it, and its state; `load` is the last one known. Before
        it was ready once, only the state."""

    async def capacity(self) -> common_pb2.Load:
        """What is taken of its capacity now."""

    async def open(self, identity: common_pb2.Identity, sampling: Sampling, work: Work) -> BackendSession:
        """A session of exactly this identity. Raises RequestError with code `identity`, and both values of
        every field that differs, for any other; `capacity` where there is no room; `not_ready` and
        `draining` (retryable) by state."""

    async def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text. Raises RequestError with code `not_owned` where it has no vocabulary."""

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool, unparse_special: bool
    ) -> bytes:
        """The text of tokens."""

    async def chat_template(self) -> str:
        """The artifact's own template; empty where it has none."""

    async def health(self) -> bool:
        """Whether it takes sessions and answers, asked of what computes it."""

    async def wait_for_change(self, seen: common_pb2.Stage) -> None:
        """Returns when `describe` says another state, or another number of restarts, than `seen`, which it
        said before; at once where it does already."""

    async def drain(self, timeout_s: float) -> bool:
        """Takes no more sessions and waits for those that are open; whether all ended in time."""
