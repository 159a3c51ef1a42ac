"""Text generation over a route, one token at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Self

from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation.chain import SessionChain
from gguf_worker.generation.record import GenerationRecord
from gguf_worker.generation.timings import Timings
from gguf_worker.protocol.messages import Candidate, Output, Result, Sampling
from gguf_worker.work import Work


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The model ended it."""
    LENGTH = "length"
    """`max_tokens` were drawn, or the context is full."""
    CANCELLED = "cancelled"
    """Whoever wanted it does not any more."""
    DEADLINE = "deadline"
    """The deadline of its work passed."""
    ERROR = "error"
    """It failed; what was raised says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One generated token."""

    index: int
    token: int
    logprob: float
    text_bytes: bytes
    """What it adds to the text; may end inside a UTF-8 sequence. Empty for the token that ends a
    generation."""
    end_of_generation: bool
    top: tuple[Candidate, ...]
    """The most likely tokens, best first: as many as the sampling's `top_logprobs`."""
    finish_reason: FinishReason | None
    """Set on the last step: `stop` or `length`."""


class Generation:
    """An async iterable of steps; iterate it once.

        async with route.generate(tokens, max_tokens=64) as generation:
            async for step in generation: ...

    `tokens`, `timings`, `record` and `finish_reason` grow with it. The `async with` is needed only where the
    loop may be left early: every stage is told then, and has ended its session when this is left.
    """

    def __init__(
        self,
        open_chain: Callable[[Sampling, Work], Awaitable[SessionChain]],
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        work: Work,
    ) -> None:
        if not prompt:
            raise ValueError("a generation needs at least one token to start from")
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1")
        self.prompt = tuple(prompt)
        self.tokens: list[int] = []
        self.timings = Timings()
        self.finish_reason: FinishReason | None = None
        self.sampling = _settled(sampling, len(self.prompt))
        """How it draws, in full: another chain that is given the same tokens with it draws the same."""
        self.work = work
        self.record = GenerationRecord(
            request_id=work.request_id, work_id=work.work_id, prompt_tokens=len(self.prompt)
        )
        """What it did and how long that took, so far; whole once it has ended."""
        self._open_chain = open_chain
        self._max_tokens = max_tokens
        self._steps = self._run()

    def __aiter__(self) -> AsyncIterator[Step]:
        return self._steps

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def stop(self) -> None:
        """Ends it where it is, as complete: its reader has all that was wanted."""
        self.finish_reason = self.finish_reason or FinishReason.STOP
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the sessions of a generation that was left early."""
        await self._steps.aclose()

    async def _run(self) -> AsyncGenerator[Step, None]:
        started = time.perf_counter()
        self.record.started_at = time.time()
        chain: SessionChain | None = None
        try:
            chain = await self._open_chain(self.sampling, self.work)
            self.record.stages = chain.records
            result = await self._prefill(chain)
            while True:
                step = self._step(result, chain)
                yield step
                if step.finish_reason is not None:
                    return
                result = await self._decode(chain, result.token)
        except BaseException as error:
            self._take_error(error)
            raise
        finally:
            self.record.finish_reason = str(self.finish_reason)
            if chain is not None:
                await self._end(chain)
            self.record.total_us = _us_since(started)

    async def _prefill(self, chain: SessionChain) -> Result:
        started = time.perf_counter()
        result = await chain.forward(self.prompt, Output.TOKEN, more=self._may_go_on(chain, len(self.prompt)))
        self.timings.prefill_s = time.perf_counter() - started
        self.timings.prefill_tokens = len(self.prompt)
        self.record.time_to_first_token_us = _us_since(started)
        return result

    async def _decode(self, chain: SessionChain, token: int) -> Result:
        started, busy_us = time.perf_counter(), _busy_us(chain)
        result = await chain.forward([token], Output.TOKEN, more=self._may_go_on(chain, 1))
        # A stage that went on by itself was at it already when this began to wait.
        took_us = max(_us_since(started), _busy_us(chain) - busy_us)
        self.timings.decode_s += took_us / 1e6
        self.timings.decode_tokens += 1
        self.record.token_us.append(took_us)
        return result

    def _may_go_on(self, chain: SessionChain, n_rows: int) -> bool:
        """Whether the token that is drawn behind so many rows will be a row itself, if nothing ends it."""
        n_drawn = len(self.tokens) + 1
        return n_drawn < self._max_tokens and chain.position + n_rows < chain.n_ctx

    def _step(self, result: Result, chain: SessionChain) -> Step:
        self.tokens.append(result.token)
        self.record.tokens = len(self.tokens)
        self.finish_reason = self._finish_reason(result, chain)
        return Step(
            index=len(self.tokens) - 1,
            token=result.token,
            logprob=result.logprob,
            text_bytes=b"" if result.end_of_generation else result.text,
            end_of_generation=result.end_of_generation,
            top=result.top,
            finish_reason=self.finish_reason,
        )

    def _finish_reason(self, result: Result, chain: SessionChain) -> FinishReason | None:
        if result.end_of_generation:
            return FinishReason.STOP
        context_is_full = chain.position >= chain.n_ctx
        if len(self.tokens) >= self._max_tokens or context_is_full:
            return FinishReason.LENGTH
        return None

    def _take_error(self, error: BaseException) -> None:
        """Why it ended early; whoever leaves it at its last step has let it end."""
        if self.finish_reason is not None:
            return
        if isinstance(error, GgufWorkerError):
            is_late = error.code == FinishReason.DEADLINE
            self.finish_reason = FinishReason.DEADLINE if is_late else FinishReason.ERROR
            self.record.error = error.code
        elif isinstance(error, Exception):
            self.finish_reason = FinishReason.ERROR
            self.record.error = type(error).__name__
        else:
            self.finish_reason = FinishReason.CANCELLED

    async def _end(self, chain: SessionChain) -> None:
        """Tells every stage how it ended: those that may still compute are to give it up."""
        assert self.finish_reason is not None
        async with chain:
            if self.finish_reason in (FinishReason.CANCELLED, FinishReason.DEADLINE):
                await chain.cancel(self.finish_reason)
            else:
                await chain.close(self.finish_reason)


def _busy_us(chain: SessionChain) -> int:
    """What its stages say that they took, so far."""
    return sum(record.queue_us + record.compute_us for record in chain.records)


def _us_since(started: float) -> int:
    return round((time.perf_counter() - started) * 1e6)


def _settled(sampling: Sampling, n_prompt: int) -> Sampling:
    """With the position from which a grammar governs: left open, it would be that of the first draw, which is
    another one where a session is opened again and given what was drawn as well."""
    if sampling.grammar and sampling.grammar_start is None:
        return replace(sampling, grammar_start=n_prompt)
    return sampling
