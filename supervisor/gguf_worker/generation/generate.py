"""Text generation over a route, one token at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Self

from gguf_worker.generation.chain import SessionChain
from gguf_worker.generation.timings import Timings
from gguf_worker.protocol.messages import Candidate, Output, Result, Sampling
from gguf_worker.supervision.worker import Worker


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The model ended it."""
    LENGTH = "length"
    """`max_tokens` were drawn, or the context is full."""


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
    """Set on the last step."""


class Generation:
    """An async iterable of steps; iterate it once.

        async with route.generate(tokens, max_tokens=64) as generation:
            async for step in generation: ...

    `tokens`, `timings` and `finish_reason` grow with it. The `async with` is needed only where the loop may
    be left early: it ends the sessions at once.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
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
        self._workers = workers
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

    async def aclose(self) -> None:
        """Ends the sessions of a generation that was left early."""
        await self._steps.aclose()

    async def _run(self) -> AsyncGenerator[Step, None]:
        async with await SessionChain.open(self._workers, self.sampling) as chain:
            result = await self._prefill(chain)
            while True:
                step = self._step(result, chain)
                yield step
                if step.finish_reason is not None:
                    return
                result = await self._decode(chain, result.token)

    async def _prefill(self, chain: SessionChain) -> Result:
        started = time.perf_counter()
        result = await chain.forward(self.prompt, Output.TOKEN)
        self.timings.prefill_s = time.perf_counter() - started
        self.timings.prefill_tokens = len(self.prompt)
        return result

    async def _decode(self, chain: SessionChain, token: int) -> Result:
        started = time.perf_counter()
        result = await chain.forward([token], Output.TOKEN)
        self.timings.decode_s += time.perf_counter() - started
        self.timings.decode_tokens += 1
        return result

    def _step(self, result: Result, chain: SessionChain) -> Step:
        self.tokens.append(result.token)
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
        context_is_full = chain.position >= self._workers[0].identity.recipe.n_ctx
        if len(self.tokens) >= self._max_tokens or context_is_full:
            return FinishReason.LENGTH
        return None


def _settled(sampling: Sampling, n_prompt: int) -> Sampling:
    """With the position from which a grammar governs: left open, it would be that of the first draw, which is
    another one where a session is opened again and given what was drawn as well."""
    if sampling.grammar and sampling.grammar_start is None:
        return replace(sampling, grammar_start=n_prompt)
    return sampling
