"""The seam between a generation and what computes it: a stage, its sessions, and where a lost one is found
again.

A `Worker` is a stage on this machine; a `node.RemoteStage` is one on another. Nothing above this file knows
which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gguf_worker._schema import Buffer
from gguf_worker.protocol.messages import Model, Output, Result, Sampling, Vocabulary
from gguf_worker.work import Work


class StageSession(Protocol):
    """One sequence's KV in one stage. One task at a time uses it.

    Calls raise RequestError where the stage refuses, RequestTimeout past a deadline, and StageLost where
    the stage, with the session in it, is gone. A forward whose task is cancelled may have been computed or
    not; the session then forgets its rows before anything else is done.
    """

    @property
    def position(self) -> int:
        """Rows that the session holds."""

    async def forward_piece(
        self,
        *,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
        output: Output | str,
        more: bool = False,
    ) -> Result:
        """Appends rows in one request, as they are: at most `Stage.max_rows(output)`. With `more`, the token
        that it draws will be the next row: a stage may compute that one before it is asked to."""

    def begin(self, token: int, output: Output) -> None:
        """A row that `forward_piece` will ask for next, if nothing ends the sequence: a stage may compute it
        now. Does not wait, and raises nothing."""

    async def trim(self, position: int) -> int:
        """Forgets every row from `position` on; gives the KV cells that became free."""

    async def fork(self, position: int | None = None, sampling: Sampling | None = None) -> StageSession:
        """A new session of the same stage that holds the first `position` rows of this one."""

    async def close(self, finish_reason: str = "") -> int:
        """Ends the session; gives the KV cells that became free, 0 where it was ended before. `finish_reason`
        is how the whole work ended; empty where the work goes on."""

    async def cancel(self, reason: str) -> int:
        """Ends the session and whatever it computes, in all states; gives the KV cells that became free."""

    async def release(self) -> None:
        """Ends the session whatever happened before: shielded, bounded, and content where the stage is
        gone."""


class Stage(Protocol):
    """A shard of a model that takes sessions, here or elsewhere."""

    @property
    def label(self) -> str:
        """Names it in messages and records: `layers 0:16`, `layers 0:16 on node-a`."""

    @property
    def layers(self) -> tuple[int, int]:
        """[start, end)."""

    @property
    def model(self) -> Model:
        """The whole model."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Special tokens; None where the stage has no vocabulary."""

    @property
    def n_ctx(self) -> int:
        """Most rows of one session."""

    @property
    def prefill_chunk(self) -> int:
        """A long prefill is cut at multiples of it."""

    @property
    def can_trim(self) -> bool:
        """Whether sessions can be trimmed and forked at any position."""

    def max_rows(self, output: Output) -> int:
        """Rows that one forward may carry."""

    async def open_session(
        self, *, sampling: Sampling | None = None, work: Work | None = None
    ) -> StageSession:
        """An empty session. It draws greedily unless `sampling` says otherwise."""

    async def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The tokens of a text."""

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """The text of tokens; it may end inside a UTF-8 sequence."""

    async def chat_template(self) -> str:
        """The artifact's own template, in Jinja's language; empty where it has none."""


class StageSource(Protocol):
    """Where a route gets one of its stages: a supervisor on this machine, or a tracker's nodes."""

    @property
    def label(self) -> str:
        """Names the place in the route, whoever fills it."""

    async def get(self, lost: Stage | None = None) -> Stage:
        """A ready stage; where one was lost, the same one started anew or another with the same identity and
        build class. Raises StageLost where there will be none, within the source's own limits of time."""
