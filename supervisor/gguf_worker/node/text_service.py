"""Text to tokens and back, by whichever stage of a node has the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gguf_worker.errors import RequestError
from gguf_worker.logs import bound
from gguf_worker.node.backend import ModelBackend
from gguf_worker_v1 import stage_pb2

MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
MAX_TOKENS: Final = 1024 * 1024
"""Of one request: more would hold up every other stream of the node while it is read."""


class TextService:
    """Answers of the backends of a node; raises RequestError where none has the vocabulary (`not_owned`), and
    whatever the one that has it raises."""

    def __init__(self, backends: Sequence[ModelBackend]) -> None:
        self._backends = backends

    async def tokenize(self, request: stage_pb2.Tokenize) -> stage_pb2.Tokenized:
        _check_size(len(request.text), MAX_TEXT_BYTES, "bytes of text")
        with bound(request_id=_shown(request.request_id)):
            tokens = await self._owner(request.artifact).tokenize(
                request.text, add_special=request.add_special, parse_special=request.parse_special
            )
        return stage_pb2.Tokenized(tokens=tokens)

    async def detokenize(self, request: stage_pb2.Detokenize) -> stage_pb2.Detokenized:
        _check_size(len(request.tokens), MAX_TOKENS, "tokens")
        with bound(request_id=_shown(request.request_id)):
            text = await self._owner(request.artifact).detokenize(
                request.tokens, remove_special=request.remove_special, unparse_special=request.unparse_special
            )
        return stage_pb2.Detokenized(text=text)

    async def chat_template(self, request: stage_pb2.GetChatTemplate) -> stage_pb2.ChatTemplate:
        return stage_pb2.ChatTemplate(text=await self._owner(request.artifact).chat_template())

    def _owner(self, artifact: str) -> ModelBackend:
        """A ready one, where there is one."""
        described = [(backend, backend.describe()) for backend in self._backends]
        owners = [
            (stage.state != "ready", index, backend)
            for index, (backend, stage) in enumerate(described)
            if stage.HasField("vocabulary") and artifact in ("", stage.identity.artifact)
        ]
        if not owners:
            raise RequestError(
                f"no stage here has the vocabulary of {artifact[:64] or 'any artifact'}; "
                "ask the node of the first or the last stage",
                code="not_owned",
            )
        return min(owners, key=lambda owner: owner[:2])[2]


def _check_size(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise RequestError(
            f"{count} {what}, where {limit} are taken at once; ask for a part of it",
            code="argument",
            fields={"expected": str(limit), "actual": str(count)},
        )


def _shown(request_id: str) -> str | None:
    """As a log line has it, whatever a client made of it."""
    return request_id[:128] or None
