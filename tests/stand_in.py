"""Stages in plain Python that are lost at chosen calls.

What they compute depends on everything that may count: the rows before, the tokens, and the piece in which a
row is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import anyio
import anyio.lowlevel

from gguf_worker._schema import Buffer
from gguf_worker.errors import RequestError, StageLost
from gguf_worker.protocol.messages import Model, Output, Result, Sampling, Vocabulary
from gguf_worker.work import Work

ROW_BYTES = 8


@dataclass(kw_only=True)
class Fate:
    """What happens to calls, all of them counted over all stages."""

    lost_before: frozenset[int] = frozenset()
    """Numbers of calls at which the stage is lost, with nothing done."""
    lost_after: frozenset[int] = frozenset()
    """... with everything done, and the answer lost."""
    refused: frozenset[int] = frozenset()
    """... of calls that are refused, and may be tried again."""
    on_call: Callable[[str, StandInStage], None] = lambda _kind, _stage: None
    """Sees each call, and may set `is_gone` or raise."""
    held: str = ""
    """Calls of this kind are never answered."""
    calls: int = 0


@dataclass(kw_only=True)
class Rules:
    """What all stages of a model have in common."""

    fate: Fate = field(default_factory=Fate)
    n_ctx: int = 4096
    prefill_chunk: int = 8
    can_trim: bool = True
    chunk_invariant: bool = False


class StandInSource:
    """Makes another stage for one that is lost."""

    def __init__(self, rules: Rules, layers: tuple[int, int]) -> None:
        self.rules = rules
        self.layers = layers
        self.stages: list[StandInStage] = []
        """All that it ever gave."""

    @property
    def label(self) -> str:
        return f"layers {self.layers[0]}:{self.layers[1]}"

    @property
    def sessions(self) -> list[StandInSession]:
        """Those that are open on stages that are there."""
        return [session for stage in self.stages if not stage.is_gone for session in stage.sessions]

    async def get(self, lost: object = None) -> StandInStage:
        await anyio.lowlevel.checkpoint()
        if not self.stages or self.stages[-1] is lost or self.stages[-1].is_gone:
            self.stages.append(StandInStage(self.rules, self.layers, f"{self.label} on {len(self.stages)}"))
        return self.stages[-1]


class StandInStage:
    """Implements gguf_worker.generation.stage.Stage."""

    def __init__(self, rules: Rules, layers: tuple[int, int], label: str) -> None:
        self.rules = rules
        self.layers = layers
        self.label = label
        self.is_gone = False
        self.sessions: list[StandInSession] = []
        self.pieces: list[tuple[int, int, Output]] = []
        """Start, rows and output of each forward."""
        self.begun: list[tuple[int, Output]] = []
        """Rows that were told to be asked for next."""
        self.ends: list[tuple[str, str]] = []
        """How sessions were ended: by close or cancel, and the reason."""
        self.works: list[Work | None] = []
        self.model = Model(architecture="none", name="", n_layer=12, n_embd=2, n_vocab=2, n_ctx_train=0)
        self.vocabulary: Vocabulary | None = None
        self.n_ctx = rules.n_ctx
        self.prefill_chunk = rules.prefill_chunk
        self.can_trim = rules.can_trim

    def max_rows(self, output: Output) -> int:
        return 4 * self.prefill_chunk if output is not Output.LOGITS_ALL else self.prefill_chunk

    async def call(self, kind: str, do: Callable[[], int | Result | StandInSession]) -> object:
        """Counts a call, and lets it meet its fate."""
        fate = self.rules.fate
        fate.calls += 1
        number = fate.calls
        await anyio.lowlevel.checkpoint()
        fate.on_call(kind, self)
        if kind == fate.held:
            await anyio.sleep_forever()
        if number in fate.lost_before:
            self.is_gone = True
        if self.is_gone:
            raise StageLost(f"{self.label} is gone", code="worker_died")
        if number in fate.refused and kind == "open":
            raise RequestError("no room", code="capacity", retryable=True)
        answer = do()
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException:
            if isinstance(answer, StandInSession):
                answer.drop()  # nobody knows of it
            raise
        if number in fate.lost_after:
            self.is_gone = True
            raise StageLost(f"{self.label} is gone", code="worker_died")
        return answer

    async def open_session(
        self, *, sampling: Sampling | None = None, work: Work | None = None
    ) -> StandInSession:
        def do() -> StandInSession:
            self.works.append(work)
            return StandInSession(self, sampling or Sampling(), [], [])

        session = await self.call("open", do)
        assert isinstance(session, StandInSession)
        return session

    async def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        raise NotImplementedError

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        raise NotImplementedError

    async def chat_template(self) -> str:
        return ""


class StandInSession:
    """Implements gguf_worker.generation.stage.StageSession."""

    def __init__(self, stage: StandInStage, sampling: Sampling, rows: list[bytes], tokens: list[int]) -> None:
        self.stage = stage
        self.sampling = sampling
        self._rows = rows
        self._tokens = tokens
        self._uncertain = False
        self.position = len(rows)
        stage.sessions.append(self)

    async def forward_piece(
        self,
        *,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
        output: Output | str,
        more: bool = False,
    ) -> Result:
        del more
        if self._uncertain:
            await self.trim(self.position)
        self._uncertain = True
        result = await self.stage.call("forward", lambda: self._forward(tokens, hidden, Output(output)))
        assert isinstance(result, Result)
        self._uncertain = False
        self.position = result.length
        return result

    def begin(self, token: int, output: Output) -> None:
        self.stage.begun.append((token, output))

    def _forward(self, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output) -> Result:
        given = [bytes([token]) for token in tokens or ()]
        if hidden is not None:
            raw = bytes(hidden)
            assert tokens is None or len(raw) == ROW_BYTES * len(tokens), "one token for each row"
            given = [raw[at : at + ROW_BYTES] for at in range(0, len(raw), ROW_BYTES)]
        assert 1 <= len(given) <= self.stage.max_rows(output)
        start = len(self._rows)
        self.stage.pieces.append((start, len(given), output))
        for index, row in enumerate(given):
            before = self._rows[-1] if self._rows else b""
            shape = "" if self.stage.rules.chunk_invariant else f"{index} of {len(given)}"
            self._rows.append(
                sha256(before + row + f"{self.stage.layers} {shape}".encode()).digest()[:ROW_BYTES]
            )
        self._tokens += tokens or ()
        new = self._rows[start:]
        given_back = {Output.HIDDEN: new, Output.LOGITS: new[-1:], Output.LOGITS_ALL: new}.get(output, [])
        values = b"".join(given_back) if given_back else None
        token = -1
        if output is Output.TOKEN:
            drawn = sha256(new[-1] + repr((self.sampling.seed, self._tokens)).encode()).digest()
            token = 2 + drawn[0] % 200
        return Result(
            session=1,
            length=len(self._rows),
            kv_cells=len(new),
            output=output,
            queue_us=1,
            compute_us=2,
            batch_rows=len(new),
            rows=len(given_back),
            columns=2 if values else 0,
            hidden=values if output is Output.HIDDEN else None,
            logits=values if output is not Output.HIDDEN else None,
            token=token,
        )

    async def trim(self, position: int) -> int:
        self.position, self._uncertain = position, True

        def do() -> int:
            freed = len(self._rows) - position
            if freed and position and not self.stage.can_trim:
                raise RequestError("recurrent state cannot be trimmed", code="unsupported")
            del self._rows[position:], self._tokens[position:]
            return freed

        freed = await self.stage.call("trim", do)
        assert isinstance(freed, int)
        self._uncertain = False
        return freed

    async def fork(self, position: int | None = None, sampling: Sampling | None = None) -> StandInSession:
        if self._uncertain:
            await self.trim(self.position)
        end = self.position if position is None else position
        fork = await self.stage.call(
            "fork",
            lambda: StandInSession(
                self.stage, sampling or self.sampling, self._rows[:end], self._tokens[:end]
            ),
        )
        assert isinstance(fork, StandInSession)
        return fork

    async def close(self, finish_reason: str = "") -> int:
        return await self._end("close", finish_reason)

    async def cancel(self, reason: str) -> int:
        return await self._end("cancel", reason)

    async def release(self) -> None:
        self.drop()

    async def _end(self, kind: str, reason: str) -> int:
        def do() -> int:
            self.stage.ends.append((kind, reason))
            return len(self._rows) if self.drop() else 0

        freed = await self.stage.call(kind, do)
        assert isinstance(freed, int)
        return freed

    def drop(self) -> bool:
        """Whether it was open."""
        if self not in self.stage.sessions:
            return False
        self.stage.sessions.remove(self)
        return True
