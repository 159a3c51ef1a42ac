"""Texts that a client asks of OpenAI's API, and everything that their streams tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the client is a library of tests
    import openai

Took = Callable[[int], Awaitable[None]]
"""Is called with the number of tokens that the client has, whenever it got more and the text goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A text that is asked for."""

    name: str
    is_chat: bool
    parameters: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Told:
    """What a stream told, in the order in which it came; without what differs between two answers that say
    the same."""

    text: str = ""
    tokens: list[object] = field(default_factory=list)
    """Each with its bytes, its log-probability, the most likely ones, and in completions where it begins."""
    roles: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    usages: list[object] = field(default_factory=list)


GREEDY: Mapping[str, Any] = {"temperature": 0}
SEEDED: Mapping[str, Any] = {"temperature": 0.8, "seed": 7, "top_p": 0.95}
PENALTY: Mapping[str, Any] = {"repeat_penalty": 1.1}
"""A parameter that the client does not know."""
NO_END: Mapping[str, int] = {"0": -100, "2": -100}
"""The tokens that end a text, of the demo model; the fake one has the first."""
TOP = 3


def completion(name: str, prompt: str, n_tokens: int, how: Mapping[str, Any]) -> Asked:
    """Of /v1/completions."""
    return Asked(
        name=f"completion, {name}",
        is_chat=False,
        parameters=_about(n_tokens, how, prompt=prompt, logprobs=TOP),
    )


def chat(name: str, prompt: str, n_tokens: int, how: Mapping[str, Any]) -> Asked:
    """Of /v1/chat/completions."""
    messages = [{"role": "user", "content": prompt}]
    parameters = _about(n_tokens, how, messages=messages, logprobs=True, top_logprobs=TOP)
    return Asked(name=f"chat, {name}", is_chat=True, parameters=parameters)


def _about(n_tokens: int, how: Mapping[str, Any], **more: object) -> dict[str, Any]:
    body = {"max_tokens": n_tokens, "logit_bias": NO_END, "stream_options": {"include_usage": True}}
    return {**body, **how, **more, "stream": True}


async def read(
    client: openai.AsyncOpenAI,
    model: str,
    asked: Asked,
    took: Took,
    taken: Callable[[], None],
    *,
    is_held: bool,
) -> Told:
    """Reads a stream to its end; `taken` is called for each event, behind `took` where the stream is held.
    Raises what the client does where it is told of an error, and ValueError where the events are not of one
    answer."""
    told, ids = Told(), set[str]()
    calls = client.chat.completions if asked.is_chat else client.completions
    async for chunk in await calls.create(model=model, **asked.parameters):
        ids.add(chunk.id)
        if not is_held:
            taken()
        before = len(told.tokens)
        _take(told, chunk, is_chat=asked.is_chat)
        if len(told.tokens) > before and not told.finish_reasons:
            await took(len(told.tokens))
        if is_held:
            taken()
    if len(ids) != 1:
        raise ValueError(f"events of {len(ids)} answers")
    return told


def _take(told: Told, chunk: Any, *, is_chat: bool) -> None:
    if chunk.choices and told.usages:
        raise ValueError("the stream goes on behind its usage")
    if chunk.usage is not None:
        told.usages.append(chunk.usage.model_dump())
    for choice in chunk.choices:
        (_take_delta if is_chat else _take_text)(told, choice)
        if choice.finish_reason is not None:
            told.finish_reasons.append(choice.finish_reason)


def _take_delta(told: Told, choice: Any) -> None:
    told.text += choice.delta.content or ""
    if choice.delta.role is not None:
        told.roles.append(choice.delta.role)
    if choice.logprobs is not None:
        told.tokens += [one.model_dump() for one in choice.logprobs.content or ()]


def _take_text(told: Told, choice: Any) -> None:
    told.text += choice.text
    if (figures := choice.logprobs) is not None:
        lists = (figures.tokens, figures.token_logprobs, figures.top_logprobs, figures.text_offset)
        told.tokens += zip(*lists, strict=True)


def differences(told: Told, expected: Told) -> list[str]:
    """How a stream differs from what it should be; nothing where it says the same to the last bit."""
    problems = []
    for name in ("text", "tokens", "roles", "finish_reasons", "usages"):
        one, other = getattr(told, name), getattr(expected, name)
        if one != other:
            same = (a == b for a, b in zip(one, other, strict=False))
            first = next((i for i, is_same in enumerate(same) if not is_same), min(len(one), len(other)))
            problems.append(
                f"other {name} from {first} on: {one[first : first + 2]!r}, not {other[first : first + 2]!r}"
            )
    return problems
