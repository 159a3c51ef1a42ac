"""Renders chat templates, in a process of its own: `python -m gguf_worker.gateway.aside_template`.

A template comes with a model from anywhere. It runs in jinja2's sandbox, which keeps it from Python; what it
may take of time and memory is limited by the process that it runs in.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gguf_worker.gateway.aside_main import Refused, answer_all

SECONDS = 3.0
MEMORY_BYTES = 1 << 30
LONGEST_TEXT = 8 << 20
"""Characters of a rendered prompt."""


class _Generation(Extension):
    """`{% generation %}`, which marks what a model is trained on, and means nothing here."""

    tags = {"generation"}  # noqa: RUF012 - as its base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(question: dict[str, Any]) -> str:
    """The prompt of a chat: `template`, and `variables` for it."""
    try:
        text = _compiled(question["template"]).render(**question["variables"])
    except TemplateError as error:
        raise Refused(f"{error.message or type(error).__name__}") from None
    if len(text) > LONGEST_TEXT:
        raise Refused(f"the prompt has {len(text)} characters, more than {LONGEST_TEXT}")
    return text


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda how: datetime.now().strftime(how)
    return environment.from_string(template)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """As models were trained with it: not made safe for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


if __name__ == "__main__":
    answer_all(render, seconds=SECONDS, memory_bytes=MEMORY_BYTES)
