"""Answers in OpenAI's shapes. No I/O."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from gguf_worker.gateway.logprobs import chat_logprobs, completion_logprobs
from gguf_worker.gateway.pieces import Drawn, Piece
from gguf_worker.work import new_id


@dataclass(slots=True)
class Usage:
    """Tokens of a request: of each prompt once, and of every choice that was drawn."""

    prompt: int = 0
    completion: int = 0

    def body(self) -> dict[str, object]:
        """As OpenAI counts them."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(slots=True)
class Whole:
    """A choice from its pieces."""

    texts: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    finish_reason: str = ""

    def add(self, piece: Piece) -> None:
        """One piece more."""
        self.texts.append(piece.text)
        self.drawn += piece.drawn
        self.finish_reason = piece.finish_reason or self.finish_reason

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)

    @property
    def mean_logprob(self) -> float:
        """By which the best of several is known."""
        return sum(one.step.logprob for one in self.drawn) / len(self.drawn) if self.drawn else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(ABC):
    """One answer: whole, or as the chunks of a stream."""

    id: str
    model: str
    fingerprint: str
    logprobs: bool
    include_usage: bool
    echoes: tuple[str, ...] = ()
    """What the texts of the choices begin with, one for each; none where that is nothing."""
    created: int = field(default_factory=lambda: int(time.time()))

    @abstractmethod
    def whole(self, choices: Sequence[Whole], usage: Usage) -> dict[str, object]:
        """Everything at once."""

    @abstractmethod
    def first(self, index: int) -> dict[str, object] | None:
        """A chunk before the first piece of a choice; None where there is none."""

    @abstractmethod
    def piece(self, index: int, piece: Piece) -> dict[str, object]:
        """A chunk with one piece."""

    def usage(self, usage: Usage) -> dict[str, object]:
        """The last chunk, where it is asked for."""
        return self._chunk([]) | {"usage": usage.body()}

    @property
    @abstractmethod
    def _stream_object(self) -> str: ...

    def _chunk(self, choices: list[dict[str, object]]) -> dict[str, object]:
        usage: dict[str, object] = {"usage": None} if self.include_usage else {}
        return {**self._head(self._stream_object), "choices": choices, **usage}

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChatAnswer(Answer):
    """Of /v1/chat/completions."""

    __slots__ = ()

    @staticmethod
    def new_id() -> str:
        return f"chatcmpl-{new_id()}"

    def whole(self, choices: Sequence[Whole], usage: Usage) -> dict[str, object]:
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.body(),
        }

    def first(self, index: int) -> dict[str, object] | None:
        return self._delta(index, {"role": "assistant", "content": "", "refusal": None}, (), None)

    def piece(self, index: int, piece: Piece) -> dict[str, object]:
        delta: dict[str, object] = {"content": piece.text} if piece.text or piece.drawn else {}
        return self._delta(index, delta, piece.drawn, piece.finish_reason)

    @property
    def _stream_object(self) -> str:
        return "chat.completion.chunk"

    def _choice(self, index: int, choice: Whole) -> dict[str, object]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None, "annotations": []},
            "logprobs": chat_logprobs(choice.drawn) if self.logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _delta(
        self, index: int, delta: dict[str, object], drawn: Sequence[Drawn], reason: str | None
    ) -> dict[str, object]:
        logprobs = chat_logprobs(drawn) if self.logprobs and drawn else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._chunk([choice])


class CompletionAnswer(Answer):
    """Of /v1/completions."""

    __slots__ = ()

    @staticmethod
    def new_id() -> str:
        return f"cmpl-{new_id()}"

    def whole(self, choices: Sequence[Whole], usage: Usage) -> dict[str, object]:
        return {
            **self._head("text_completion"),
            "choices": [
                self._choice(index, self._echo(index) + choice.text, choice.drawn, choice.finish_reason)
                for index, choice in enumerate(choices)
            ],
            "usage": usage.body(),
        }

    def first(self, index: int) -> dict[str, object] | None:
        echo = self._echo(index)
        return self._chunk([self._choice(index, echo, (), None)]) if echo else None

    def piece(self, index: int, piece: Piece) -> dict[str, object]:
        return self._chunk([self._choice(index, piece.text, piece.drawn, piece.finish_reason)])

    @property
    def _stream_object(self) -> str:
        return "text_completion"

    def _choice(self, index: int, text: str, drawn: Sequence[Drawn], reason: str | None) -> dict[str, object]:
        return {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(drawn, len(self._echo(index))) if self.logprobs else None,
            "finish_reason": reason,
        }

    def _echo(self, index: int) -> str:
        return self.echoes[index] if self.echoes else ""
