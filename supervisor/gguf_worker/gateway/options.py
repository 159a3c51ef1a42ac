"""What both APIs say about how text is drawn, read strictly."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gguf_worker._schema import SchemaError
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.fields import Fields
from gguf_worker.gateway.schemas import check_schema
from gguf_worker.protocol.limits import MAX_LOGIT_BIAS
from gguf_worker.protocol.messages import Sampling

MOST_CHOICES = 128
MOST_STOPS = 16
LONGEST_STOP = 1024
"""Characters of one stop string."""
MOST_TOKENS = 2**31 - 1
BAN = -100.0
"""A bias that is as low as this bans its token."""
LEAST_TOP_P = 1e-6
"""OpenAI's 0: the most likely token only."""

IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prediction", "parallel_tool_calls", "moderation"),
    }
)
"""Parameters of OpenAI's that change nothing of the text here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is wanted of each choice."""

    max_tokens: int | None
    """None is `usual_tokens`, or what there is room for where that is less."""
    usual_tokens: int | None
    """None is as the server has it."""
    n: int
    best_of: int
    """Choices that are generated; the `n` best of them are given."""
    stops: tuple[str, ...]
    seed: int
    """Of the first choice; each further one has the next."""
    sampling: Sampling
    schema: str | None
    """JSON schema of the text, as JSON; it becomes the sampling's grammar."""
    logprobs: bool
    stream: bool
    include_usage: bool

    def sampling_of(self, choice: int, grammar: str) -> Sampling:
        """How one choice is drawn."""
        return replace(self.sampling, seed=(self.seed + choice) % 2**32, grammar=grammar)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Whether they are wanted, and how many candidates with each."""

    wanted: bool = False
    top: int = 0


def take_options(
    fields: Fields,
    *,
    logprobs: Logprobs,
    max_tokens: int | None,
    usual_tokens: int | None = None,
    best_of: int | None = None,
    schema: str | None = None,
) -> Options:
    """Reads what the APIs have in common; the rest was read before. Raises ApiError."""
    n = fields.integer("n", 1, MOST_CHOICES, 1)
    stream = fields.boolean("stream")
    if best_of is not None and best_of < n:
        raise fields.refuse("best_of", f"is {best_of}, less than n, which is {n}")
    if best_of is not None and best_of > n and stream:
        raise fields.refuse("best_of", "needs all choices at once and cannot be streamed")
    return Options(
        max_tokens=max_tokens,
        usual_tokens=usual_tokens,
        n=n,
        best_of=best_of or n,
        stops=_stops(fields),
        seed=_seed(fields),
        include_usage=_include_usage(fields, stream=stream),
        sampling=_sampling(fields, logprobs.top, has_schema=schema is not None),
        schema=schema,
        logprobs=logprobs.wanted,
        stream=stream,
    )


def response_schema(fields: Fields) -> str | None:
    """The JSON schema that `response_format` asks for; None where any text will do. Raises ApiError."""
    given = fields.object_of("response_format")
    if given is None:
        return None
    kind = given.one_of("type", ("text", "json_object", "json_schema"), "text")
    schema: Mapping[str, object] | None = {"type": "object"} if kind == "json_object" else None
    if kind == "json_schema":
        named = given.checked_object("json_schema", given.need("json_schema"))
        schema = named.checked_object("schema", named.need("schema")).members()
        named.text("name")
        named.text("description")
        named.boolean("strict")
        named.finish()
        check_schema(schema)
    given.finish()
    return None if schema is None else json.dumps(schema)


def _sampling(fields: Fields, top_logprobs: int, *, has_schema: bool) -> Sampling:
    grammar = fields.text("grammar", "")
    if grammar and has_schema:
        raise fields.refuse("grammar", "cannot be combined with response_format: give one of them")
    try:
        return Sampling(
            temperature=fields.number("temperature", 0, 2, 1.0),
            top_p=max(LEAST_TOP_P, fields.number("top_p", 0, 1, 1.0)),
            presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
            frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
            logit_bias=_logit_bias(fields),
            top_k=fields.integer("top_k", 0, 2**31 - 1, 0),
            min_p=fields.number("min_p", 0, 1, 0.0),
            typical_p=max(LEAST_TOP_P, fields.number("typical_p", 0, 1, 1.0)),
            repeat_penalty=max(LEAST_TOP_P, fields.number("repeat_penalty", 0, 10, 1.0)),
            repeat_last_n=fields.integer("repeat_last_n", -1, 2**31 - 1, 64),
            grammar=grammar,
            top_logprobs=top_logprobs,
        )
    except SchemaError as error:  # such as a grammar that is too long, or a token that no model has
        raise ApiError(str(error)) from None


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    given = fields.object_of("logit_bias")
    if given is None:
        return ()
    pairs = given.members()
    if len(pairs) > MAX_LOGIT_BIAS:
        raise fields.refuse("logit_bias", f"has {len(pairs)} tokens, more than {MAX_LOGIT_BIAS}")
    biases = []
    for token, bias in pairs.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise given.refuse(token, "is not a token's number")
        value = given.checked_number(token, bias, -100, 100)
        biases.append((int(token), -math.inf if value <= BAN else value))
    return tuple(biases)


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.take("stop")
    if given is None:
        return ()
    texts = [given] if isinstance(given, str) else fields.checked_list("stop", given, MOST_STOPS)
    stops = tuple(fields.checked_text("stop", text) for text in texts)
    for stop in stops:
        if not 0 < len(stop) <= LONGEST_STOP:
            raise fields.refuse("stop", f"has a string of {len(stop)} characters; 1 to {LONGEST_STOP} can be")
    return stops


def _seed(fields: Fields) -> int:
    """32 bits of what is given; random where nothing is."""
    given = fields.integer("seed", -(2**63), 2**63 - 1)
    return secrets.randbits(32) if given is None else given % 2**32


def _include_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.object_of("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.refuse("stream_options", "is there without stream")
    include = options.boolean("include_usage")
    options.finish(ignored=("include_obfuscation",))
    return include
