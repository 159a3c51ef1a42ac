"""Makes grammars of JSON schemas, in a process of its own: `python -m gguf_worker.gateway.aside_schema`. The
converter is llama-cpp-python's, whose import loads native libraries."""

from __future__ import annotations

from gguf_worker.gateway.aside_main import answer_all

SECONDS = 20.0
MEMORY_BYTES = 8 << 30


def convert(question: dict[str, object]) -> str:
    """The GBNF of `schema`, which is JSON."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    return str(json_schema_to_gbnf(str(question["schema"])))


if __name__ == "__main__":
    answer_all(convert, seconds=SECONDS, memory_bytes=MEMORY_BYTES)
