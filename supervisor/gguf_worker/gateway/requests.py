"""The bodies of requests as dataclasses, read strictly: what we do not know, or do not do and would change
the answer, is refused by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gguf_worker.gateway.fields import Fields
from gguf_worker.gateway.messages import take_messages
from gguf_worker.gateway.options import IGNORED, MOST_TOKENS, Logprobs, Options, response_schema, take_options

MOST_PROMPTS = 128
MOST_CHOICES_IN_ALL = 512
"""Of all prompts of a request."""
MOST_INPUTS = 2048
MOST_PROMPT_TOKENS = 2**22
COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens in the completions API."""

TextOrTokens = str | tuple[int, ...]
"""A text, or the tokens of one."""

_NO_TOOLS = "this gateway calls no tools"
_REFUSED_IN_CHAT = {
    "tools": _NO_TOOLS,
    "tool_choice": _NO_TOOLS,
    "functions": _NO_TOOLS,
    "function_call": _NO_TOOLS,
    "audio": "the model gives text only",
    "modalities": "the model gives text only",
    "web_search_options": "nothing is searched",
    "reasoning_effort": "the model thinks as its template says",
    "verbosity": "say it in the prompt",
}
_REFUSED_IN_COMPLETIONS = {"suffix": "text is only continued"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Of /v1/completions."""

    model: str | None
    """None is the only one."""
    prompts: tuple[TextOrTokens, ...]
    echo: bool
    options: Options

    @classmethod
    def parse(cls, body: dict[str, object]) -> CompletionRequest:
        """Raises ApiError."""
        fields = Fields(body)
        model = fields.text("model")
        prompts = _prompts(fields, "prompt", MOST_PROMPTS)
        echo = fields.boolean("echo")
        top = fields.integer("logprobs", 0, 5)
        if echo and top is not None:
            raise fields.refuse("logprobs", "cannot be had with echo: only drawn tokens have them")
        options = take_options(
            fields,
            logprobs=Logprobs(wanted=top is not None, top=top or 0),
            max_tokens=fields.integer("max_tokens", 1, MOST_TOKENS),
            usual_tokens=COMPLETION_TOKENS,
            best_of=fields.integer("best_of", 1, 20),
            schema=response_schema(fields),
        )
        if len(prompts) * options.best_of > MOST_CHOICES_IN_ALL:
            raise fields.refuse(
                "prompt",
                f"has {len(prompts)} texts with {options.best_of} choices each; "
                f"{MOST_CHOICES_IN_ALL} in all can be",
            )
        fields.finish(ignored=IGNORED, refused=_REFUSED_IN_COMPLETIONS)
        return cls(model=model, prompts=prompts, echo=echo, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Of /v1/chat/completions."""

    model: str | None
    messages: tuple[dict[str, object], ...]
    """As a template takes them."""
    options: Options

    @classmethod
    def parse(cls, body: dict[str, object]) -> ChatRequest:
        """Raises ApiError."""
        fields = Fields(body)
        model = fields.text("model")
        messages = take_messages(fields)
        options = take_options(
            fields,
            logprobs=_chat_logprobs(fields),
            max_tokens=_chat_max_tokens(fields),
            schema=response_schema(fields),
        )
        _drop_what_asks_for_nothing(fields)
        fields.finish(ignored=IGNORED, refused=_REFUSED_IN_CHAT)
        return cls(model=model, messages=messages, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Of /v1/embeddings."""

    model: str | None
    inputs: tuple[TextOrTokens, ...]
    encoding: Literal["float", "base64"]
    dimensions: int | None
    pooling: str | None
    """Of a model whose file says none."""

    @classmethod
    def parse(cls, body: dict[str, object]) -> EmbeddingRequest:
        """Raises ApiError."""
        fields = Fields(body)
        model = fields.text("model")
        inputs = _prompts(fields, "input", MOST_INPUTS)
        encoding = fields.one_of("encoding_format", ("float", "base64"), "float")
        dimensions = fields.integer("dimensions", 1, 2**31 - 1)
        pooling = fields.one_of("pooling", ("mean", "cls", "last"), "mean") if "pooling" in fields else None
        fields.finish(ignored=IGNORED)
        return cls(
            model=model,
            inputs=inputs,
            encoding="base64" if encoding == "base64" else "float",
            dimensions=dimensions,
            pooling=pooling,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """Of /tokenize, as llama.cpp's server has it."""

    model: str | None
    content: str
    add_special: bool
    parse_special: bool
    with_pieces: bool

    @classmethod
    def parse(cls, body: dict[str, object]) -> TokenizeRequest:
        """Raises ApiError."""
        fields = Fields(body)
        request = cls(
            model=fields.text("model"),
            content=fields.checked_text("content", fields.need("content")),
            add_special=fields.boolean("add_special"),
            parse_special=fields.boolean("parse_special", default=True),
            with_pieces=fields.boolean("with_pieces"),
        )
        fields.finish()
        return request


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    """Of /detokenize."""

    model: str | None
    tokens: tuple[int, ...]

    @classmethod
    def parse(cls, body: dict[str, object]) -> DetokenizeRequest:
        """Raises ApiError."""
        fields = Fields(body)
        model = fields.text("model")
        tokens = fields.checked_list("tokens", fields.need("tokens"), MOST_PROMPT_TOKENS)
        fields.finish()
        return cls(model=model, tokens=_tokens(fields, "tokens", tokens))


def _prompts(fields: Fields, name: str, most: int) -> tuple[TextOrTokens, ...]:
    """A text, texts, tokens, or several lists of tokens."""
    given = fields.need(name)
    if isinstance(given, str):
        return (fields.checked_text(name, given),)
    if isinstance(given, list) and given and all(_is_token(one) for one in given):
        return (_tokens(fields, name, given),)
    prompts = fields.checked_list(name, given, most)
    if not prompts:
        raise fields.refuse(name, "is empty")
    return tuple(_prompt(fields, name, prompt) for prompt in prompts)


def _prompt(fields: Fields, name: str, given: object) -> TextOrTokens:
    if isinstance(given, list):
        return _tokens(fields, name, given)
    return fields.checked_text(name, given)


def _tokens(fields: Fields, name: str, given: list[object]) -> tuple[int, ...]:
    tokens = tuple(one for one in given if isinstance(one, int) and _is_token(one))
    if len(tokens) != len(given):
        raise fields.refuse(name, "has something among its tokens that is none")
    return tokens


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _chat_logprobs(fields: Fields) -> Logprobs:
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise fields.refuse("top_logprobs", "needs logprobs to be true")
    return Logprobs(wanted=wanted, top=top or 0)


def _chat_max_tokens(fields: Fields) -> int | None:
    """Under its new name, its old one, or both with the same value."""
    new = fields.integer("max_completion_tokens", 1, MOST_TOKENS)
    old = fields.integer("max_tokens", 1, MOST_TOKENS)
    if new is not None and old is not None and new != old:
        raise fields.refuse("max_tokens", f"is {old} and max_completion_tokens is {new}: give one of them")
    return new if new is not None else old


def _drop_what_asks_for_nothing(fields: Fields) -> None:
    """Parameters that say what is so in any case."""
    for name, harmless in (
        ("tools", ([],)),
        ("functions", ([],)),
        ("tool_choice", ("none", "auto")),
        ("function_call", ("none", "auto")),
        ("modalities", (["text"],)),
    ):
        value = fields.take(name)
        if value is not None and value not in harmless:
            raise fields.refuse(name, f"is not supported: {_REFUSED_IN_CHAT[name]}", "unsupported_parameter")
