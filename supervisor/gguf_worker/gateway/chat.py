"""Prompts of chats: the artifact's own template, rendered beside this process."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gguf_worker.gateway.aside import Aside, AsideError
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.model import ServedModel

LONGEST_TEMPLATE = 1 << 20
"""Characters."""
TIMEOUT_S = 10.0
"""The program's own limit is tighter; this holds where it cannot even be started."""


class ChatPrompts:
    """An async context manager around the process that renders."""

    def __init__(self) -> None:
        self._aside = Aside("gguf_worker.gateway.aside_template", timeout_s=TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._aside.__aexit__(kind, error, trace)

    async def render(self, model: ServedModel, messages: Sequence[dict[str, object]]) -> str:
        """The prompt of a chat, which the assistant is to go on from. Raises ApiError."""
        template = await model.chat_template()
        if not template:
            raise ApiError(
                f"the model {model.name!r} has no chat template; use /v1/completions", code="no_chat_template"
            )
        if len(template) > LONGEST_TEMPLATE:
            raise ApiError(
                f"the model's chat template has more than {LONGEST_TEMPLATE} characters", code="chat_template"
            )
        variables = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "bos_token": await model.spelling_of("bos"),
            "eos_token": await model.spelling_of("eos"),
        }
        try:
            return await self._aside.ask({"template": template, "variables": variables})
        except AsideError as error:
            raise ApiError(
                f"the model's chat template refuses these messages: {error}",
                param="messages",
                code="chat_template",
            ) from None
