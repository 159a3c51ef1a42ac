"""The official client against a gateway: every call, and each answer as strictly as its own types read it."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from gateways import NAME, Site, halves, site

pytestmark = pytest.mark.anyio

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def strictly(answer: BaseModel) -> None:
    """Reads an answer again without any leniency: types as they are, and nothing that the type lacks."""
    type(answer).model_validate_json(answer.model_dump_json(exclude_unset=True), strict=True)
    _has_no_extras(answer)


def _has_no_extras(value: object) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{type(value).__name__} has no {set(value.model_extra or ())}"
        for name in type(value).model_fields:
            _has_no_extras(getattr(value, name))
    elif isinstance(value, list):
        for one in value:
            _has_no_extras(one)


def with_a_reason(chunk: Completion) -> Completion:
    """OpenAI's own server says null until the last chunk, which the client's type does not know."""
    choices = [one.model_copy(update={"finish_reason": one.finish_reason or "stop"}) for one in chunk.choices]
    return chunk.model_copy(update={"choices": choices})


async def complete(client: openai.AsyncOpenAI, **more: Any) -> Completion:
    asked = {"model": NAME, "prompt": "Hello", "max_tokens": 24, "temperature": 0, **more}
    answer = await client.completions.create(**asked)
    assert isinstance(answer, Completion)
    strictly(answer)
    return answer


async def complete_in_chunks(client: openai.AsyncOpenAI, **more: Any) -> list[Completion]:
    asked = {"model": NAME, "prompt": "Hello", "max_tokens": 24, "temperature": 0, "stream": True, **more}
    chunks = [chunk async for chunk in await client.completions.create(**asked)]
    for chunk in chunks:
        strictly(with_a_reason(chunk))
    return chunks


async def chat(client: openai.AsyncOpenAI, **more: Any) -> ChatCompletion:
    asked = {"model": NAME, "messages": HELLO, "max_completion_tokens": 24, "temperature": 0, **more}
    answer = await client.chat.completions.create(**asked)
    assert isinstance(answer, ChatCompletion)
    strictly(answer)
    return answer


async def chat_in_chunks(client: openai.AsyncOpenAI, **more: Any) -> list[ChatCompletionChunk]:
    asked = {"model": NAME, "messages": HELLO, "max_completion_tokens": 24, "temperature": 0, **more}
    chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    for chunk in chunks:
        strictly(chunk)
    return chunks


async def is_free(served: Site) -> bool:
    """Whether no stage holds anything for anybody."""
    return {*await served.sessions(), *await served.cells()} == {0} and served.model.admission.active == 0


async def test_models() -> None:
    async with site() as served, served.openai() as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == [NAME]
        for model in (*models.data, await client.models.retrieve(NAME)):
            strictly(model)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_completion_and_its_stream_are_the_same() -> None:
    """Text, tokens, probabilities, offsets, reason, usage."""
    async with site() as served, served.openai() as client:
        whole = await complete(client, logprobs=3)
        chunks = await complete_in_chunks(client, logprobs=3, stream_options={"include_usage": True})
        (choice,) = whole.choices
        assert choice.logprobs is not None
        assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == choice.text
        assert chunks[-2].choices[0].finish_reason == choice.finish_reason
        assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
        assert {chunk.id for chunk in chunks} == {chunks[0].id}
        for figure in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            told = [getattr(chunk.choices[0].logprobs, figure) for chunk in chunks[:-1]]
            assert list(chain.from_iterable(told)) == getattr(choice.logprobs, figure)
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len("Hello") + 1, "the model's first token is one of them"
        assert await is_free(served)


async def test_chat_and_its_stream_are_the_same() -> None:
    async with site() as served, served.openai() as client:
        whole = await chat(client, logprobs=True, top_logprobs=2)
        chunks = await chat_in_chunks(client, logprobs=True, top_logprobs=2)
        (choice,) = whole.choices
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == choice.message.content
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        parts = [chunk.choices[0].logprobs for chunk in chunks]
        told = [one for part in parts if part is not None for one in part.content or ()]
        assert told == choice.logprobs.content
        assert all(len(one.top_logprobs) == 2 for one in told)
        assert b"".join(bytes(one.bytes or ()) for one in told).decode("utf-8", "replace") == (
            choice.message.content
        )
        assert await is_free(served)


async def test_chat_is_what_its_template_says() -> None:
    """The same text as a completion of what the fake model's template makes of the messages."""
    async with site() as served, served.openai() as client:
        said = await chat(client)
        completed = await complete(client, prompt="user: Hello\nassistant:")
        assert said.choices[0].message.content == completed.choices[0].text


async def test_text_is_never_broken_inside_a_character() -> None:
    """Tokens of the fake model are bytes, so that every character of more is split; asked to say nothing
    else, it says them all the same."""
    async with site() as served, served.openai() as client:
        ban = {str(token): -100 for token in range(256) if not 0xC3 <= token <= 0xC4 and token < 0x80}
        for seed in range(4):
            asked = {"logit_bias": ban, "temperature": 1.0, "seed": seed}
            chunks = await complete_in_chunks(client, **asked)
            whole = await complete(client, **asked)
            assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


async def test_stop_string_across_tokens() -> None:
    """The text ends before it, whole and streamed, and so does the generation; it is not called cancelled."""
    async with site() as served, served.openai() as client:
        text = (await complete(client)).choices[0].text
        stop = text[5:8]
        cut = text[: text.index(stop)]
        whole = await complete(client, stop=["never to be seen", stop], logprobs=0)
        chunks = await complete_in_chunks(client, stop=stop)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (cut, "stop")
        assert "".join(chunk.choices[0].text for chunk in chunks) == cut
        assert chunks[-1].choices[0].finish_reason == "stop"
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None
        assert all(offset < len(cut) for offset in logprobs.text_offset or ())
        assert whole.usage is not None
        assert whole.usage.completion_tokens < 24
        async with served.http() as plain:
            page = (await plain.get("/metrics")).text
        assert 'finish_reason="cancelled"' not in page
        assert await is_free(served)


async def test_choices_are_those_of_their_seeds() -> None:
    """Each choice is what its own seed gives alone; the same seed gives the same again."""
    async with site() as served, served.openai() as client:
        together = await complete(client, n=6, temperature=1, seed=5)
        assert [choice.index for choice in together.choices] == list(range(6))
        texts = [choice.text for choice in together.choices]
        alone = [(await complete(client, temperature=1, seed=5 + n)).choices[0].text for n in range(6)]
        assert texts == alone
        assert len(set(texts)) > 1
        chunks = await complete_in_chunks(client, n=6, temperature=1, seed=5)
        streamed = ["".join(c.choices[0].text for c in chunks if c.choices[0].index == n) for n in range(6)]
        assert streamed == texts
        assert await is_free(served)


async def test_seed_of_an_answer_is_told() -> None:
    """So that a text can be had again."""
    async with site() as served, served.openai() as client:
        raw = await client.completions.with_raw_response.create(model=NAME, prompt="Hello", max_tokens=24)
        again = await complete(client, temperature=1, seed=int(raw.headers["x-seed"]))
        assert raw.parse().choices[0].text == again.choices[0].text


async def test_best_of_gives_the_likeliest() -> None:
    async with site() as served, served.openai() as client:
        all_of_them = await complete(client, n=4, temperature=1, seed=1, logprobs=0, max_tokens=8)
        best = await complete(client, n=1, best_of=4, temperature=1, seed=1, logprobs=0, max_tokens=8)

        def mean(choice: Any) -> float:
            logprobs: list[float] = choice.logprobs.token_logprobs
            return sum(logprobs) / len(logprobs)

        assert best.choices[0].text == max(all_of_them.choices, key=mean).text
        assert best.usage == all_of_them.usage


async def test_usage_counts_the_tokens_of_every_choice() -> None:
    """Also of those that end one after the other while the others go on."""
    async with site() as served, served.openai() as client:
        answer = await complete(client, prompt=["Hello", "Hi"], n=2, temperature=1, seed=1)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == served.gateway.figures.tokens


async def test_prompts_of_every_kind_and_echo() -> None:
    async with site() as served, served.openai() as client:
        async with served.http() as plain:
            asked = {"content": "Hi", "add_special": True}
            tokens = (await plain.post("/tokenize", json=asked)).json()["tokens"]
        both = await complete(client, prompt=["Hello", "Hi"], echo=True, n=2)
        expected = ["Hello", "Hello", "Hi", "Hi"]
        assert [c.text[: len(e)] for c, e in zip(both.choices, expected, strict=True)] == expected
        of_tokens = await complete(client, prompt=tokens, echo=True)
        assert of_tokens.choices[0].text == both.choices[2].text
        chunks = await complete_in_chunks(client, prompt="Hi", echo=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == both.choices[2].text


async def test_embeddings() -> None:
    """In both encodings the same vectors, of length 1; several at a time what each is alone."""
    specs = [replace(one, model=f"{one.model},pooling=3") for one in halves()]
    async with site(specs) as served, served.openai() as client:
        packed = await client.embeddings.create(model=NAME, input=["Hello", "you"])
        floats = await client.embeddings.create(model=NAME, input=["Hello", "you"], encoding_format="float")
        alone = await client.embeddings.create(model=NAME, input="you", encoding_format="float")
        for answer in (packed, floats, alone):
            strictly(answer)
        for one, other in zip(packed.data, floats.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
            assert sum(value * value for value in one.embedding) == pytest.approx(1)
        assert floats.data[1].embedding == alone.data[0].embedding
        assert await is_free(served)
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            await client.embeddings.create(model=NAME, input="you", dimensions=3)


async def test_model_that_is_not_for_embeddings_says_so() -> None:
    async with site() as served, served.openai() as client:
        with pytest.raises(openai.BadRequestError, match="not made for embeddings"):
            await client.embeddings.create(model=NAME, input="you")
        told = await client.embeddings.create(model=NAME, input="you", extra_body={"pooling": "mean"})
        assert len(told.data[0].embedding) == served.model.about.n_embd_out
