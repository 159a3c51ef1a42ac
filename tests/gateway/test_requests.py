"""Bodies of requests: what is read, what is refused and by which name, and that nothing else comes out."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gguf_worker.gateway.body import parse_object
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)

USER = {"role": "user", "content": "Hello"}


def chat(**more: Any) -> ChatRequest:
    return ChatRequest.parse({"messages": [USER], **more})


def completion(**more: Any) -> CompletionRequest:
    return CompletionRequest.parse({"prompt": "Hello", **more})


def test_sampling_is_read() -> None:
    options = chat(
        temperature=0.5, top_p=0, seed=-1, logit_bias={"5": -100, "6": 2}, max_completion_tokens=7, stop="a",
        presence_penalty=1, frequency_penalty=-1, top_k=3, min_p=0.1, n=2, logprobs=True, top_logprobs=4,
    ).options  # fmt: skip
    assert options.sampling.logit_bias == ((5, -math.inf), (6, 2.0))
    assert 0 < options.sampling.top_p < 1e-5
    assert (options.seed, options.max_tokens, options.stops) == (2**32 - 1, 7, ("a",))
    assert options.sampling_of(1, "").seed == 0, "the next choice has the next seed"
    assert (options.logprobs, options.sampling.top_logprobs) == (True, 4)


def test_seed_is_random_where_none_is_given() -> None:
    assert len({chat().options.seed for _ in range(8)}) > 1


def test_null_is_not_given() -> None:
    """OpenAI's clients send it."""
    assert chat(temperature=None, stop=None, tools=None, logit_bias=None).options.sampling.temperature == 1


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"store": False},
        {"tools": []},
        {"tool_choice": "none"},
        {"modalities": ["text"]},
        {"response_format": {"type": "text"}},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
    ids=str,
)
def test_what_changes_nothing_is_taken(harmless: dict[str, Any]) -> None:
    chat(**harmless)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1.0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"temprature": 1}, "temprature"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**wrong)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert param.split(".")[0].split("[")[0] in caught.value.message


def test_messages_are_as_templates_take_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "x", "tool_call_id": "1"},
        ]
    )
    assert request.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ([[1, 2], "a"], ((1, 2), "a")),
    ],
)
def test_prompts_of_every_kind(prompt: object, expected: object) -> None:
    assert completion(prompt=prompt).prompts == expected


@pytest.mark.parametrize("prompt", [[], [-1], [True], [1, "a"], [[1.5]], {"a": 1}, 5])
def test_prompts_of_no_kind(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "wrong",
    [
        {"echo": True, "logprobs": 1},
        {"best_of": 1, "n": 2},
        {"best_of": 3, "stream": True},
        {"suffix": "x"},
        {"prompt": ["x"] * 128, "n": 5},
    ],
    ids=str,
)
def test_completions_refuse_what_they_cannot(wrong: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        completion(**wrong)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000], ids=repr)
def test_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert caught.value.code == "invalid_json"


@settings(deadline=None)
@given(
    body=some.dictionaries(
        some.sampled_from(
            ["prompt", "messages", "model", "n", "stop", "seed", "logit_bias", "response_format", "stream",
             "stream_options", "temperature", "input", "tokens", "content", "pooling", "grammar", "echo"]
        ),
        some.recursive(
            some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
            lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner),
            max_leaves=6,
        ),
        max_size=5,
    )
)  # fmt: skip
def test_any_body_is_read_or_refused(body: dict[str, object]) -> None:
    """Nothing but ApiError is ever raised."""
    for kind in (CompletionRequest, ChatRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest):
        with suppress(ApiError):
            kind.parse(dict(body))
