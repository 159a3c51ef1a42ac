"""JSON schemas as grammars: checked here, converted by llama-cpp-python in a process of its own, and kept."""

from __future__ import annotations

from collections import OrderedDict

import anyio

from gguf_worker.gateway.aside import Aside, AsideError
from gguf_worker.gateway.errors import ApiError
from gguf_worker.protocol.limits import MAX_GRAMMAR_BYTES

PARAM = "response_format"
MOST_NODES = 10_000
DEEPEST = 64
LONGEST_SCHEMA = 256 * 1024
"""Characters of its JSON."""
KEPT = 64
"""Grammars that are kept."""
AT_ONCE = 2
"""Processes that convert; other schemas wait for one of them."""
TIMEOUT_S = 20.0
"""Most of it is the load of the library."""


def check_schema(schema: object) -> None:
    """Raises ApiError where a schema is too large, or names something outside itself: the library would go
    and get it."""
    left: list[tuple[object, int]] = [(schema, 0)]
    seen = 0
    while left:
        node, depth = left.pop()
        seen += 1
        if seen > MOST_NODES or depth > DEEPEST:
            raise ApiError(
                f"the schema is too large: {MOST_NODES} values and {DEEPEST} levels can be", param=PARAM
            )
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                raise ApiError(
                    f"the schema refers to {reference!r}; only its own parts (#/…) can be", param=PARAM
                )
            left += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, list):
            left += [(value, depth + 1) for value in node]


class Grammars:
    """Grammars of schemas. Each conversion has a process, for it needs native code, which is not to run in
    this one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._turn = anyio.Semaphore(AT_ONCE)

    async def of_schema(self, schema: str) -> str:
        """The GBNF of a schema that was checked. Raises ApiError."""
        if len(schema) > LONGEST_SCHEMA:
            raise ApiError(f"the schema has more than {LONGEST_SCHEMA} characters", param=PARAM)
        if schema not in self._kept:
            async with self._turn:
                if schema not in self._kept:  # another request may have had it made meanwhile
                    self._keep(schema, await _convert(schema))
        self._kept.move_to_end(schema)
        return self._kept[schema]

    def _keep(self, schema: str, grammar: str) -> None:
        self._kept[schema] = grammar
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


async def _convert(schema: str) -> str:
    async with Aside("gguf_worker.gateway.aside_schema", timeout_s=TIMEOUT_S) as aside:
        try:
            grammar = await aside.ask({"schema": schema})
        except AsideError as error:
            raise ApiError(f"the schema cannot be made a grammar: {error}", param=PARAM) from None
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise ApiError(f"the schema's grammar has more than {MAX_GRAMMAR_BYTES} bytes", param=PARAM)
    return grammar
