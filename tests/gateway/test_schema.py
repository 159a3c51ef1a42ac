"""Text that a schema or a grammar governs, by the real engine and a toy model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateways import NAME, Site, site
from gguf_worker import Recipe, ShardSpec
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.schemas import AT_ONCE, LONGEST_SCHEMA, Grammars, check_schema

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}


def toy_shards(path: Path) -> list[ShardSpec]:
    recipe = Recipe(n_ctx=512, n_threads=1, kv_unified=False)
    return [ShardSpec(str(path), layers=layers, recipe=recipe) for layers in ((0, 3), (3, 6))]


async def said(served: Site, **more: Any) -> str:
    """What the toy model says to a fixed question."""
    async with served.openai() as client:
        answer = await client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": "who?"}],
            max_tokens=120,
            temperature=1,
            seed=3,
            **more,
        )
        text = answer.choices[0].message.content
        assert isinstance(text, str)
        return text


async def test_text_is_what_the_schema_allows(build_toy: Callable[[str], Path]) -> None:
    """However little the model knows of it; and a grammar that is given governs as well."""
    async with site(toy_shards(build_toy("llama-q8_0-tied"))) as served:
        named = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}
        pet = json.loads(await said(served, response_format=named))
        assert set(pet) == {"kind", "old"}
        assert pet["kind"] in ("cat", "dog")
        assert isinstance(pet["old"], bool)
        text = await said(served, extra_body={"grammar": 'root ::= "yes" | "no"'})
        assert text in ("yes", "no")
        await served.nothing_is_open()


async def test_grammar_that_is_none_is_the_clients_fault(build_toy: Callable[[str], Path]) -> None:
    async with site(toy_shards(build_toy("llama-q8_0-tied"))) as served, served.http() as client:
        answer = await client.post("/v1/completions", json={"prompt": "a", "grammar": "root ::= ("})
        assert answer.status_code == 400
        await served.nothing_is_open()


async def test_grammar_of_a_schema_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars()
    first = await grammars.of_schema(json.dumps(SCHEMA))
    monkeypatch.setattr("gguf_worker.gateway.schemas._convert", None)
    assert await grammars.of_schema(json.dumps(SCHEMA)) == first
    assert "root ::=" in first


async def test_few_schemas_are_converted_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each takes a process."""
    began: list[str] = []
    go_on = anyio.Event()

    async def convert(schema: str) -> str:
        began.append(schema)
        await go_on.wait()
        return schema

    monkeypatch.setattr("gguf_worker.gateway.schemas._convert", convert)
    grammars = Grammars()
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(grammars.of_schema, f"schema {number}")
        await anyio.wait_all_tasks_blocked()
        assert len(began) == AT_ONCE
        go_on.set()
    assert len(began) == 8


async def test_schema_that_is_too_long_is_refused() -> None:
    with pytest.raises(ApiError, match="characters"):
        await Grammars().of_schema(json.dumps({"description": "x" * LONGEST_SCHEMA}))


async def test_schema_that_is_none_is_the_clients_fault() -> None:
    with pytest.raises(ApiError) as caught:
        await Grammars().of_schema(json.dumps({"type": "no such type"}))
    assert (caught.value.status, caught.value.param) == (400, "response_format")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema"},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"anyOf": [{"type": "null"}] * 20_000},
        json.loads('{"items":' * 80 + "{}" + "}" * 80),
    ],
    ids=["web", "file", "wide", "deep"],
)
def test_schema_that_reaches_too_far_is_refused(schema: object) -> None:
    with pytest.raises(ApiError):
        check_schema(schema)
