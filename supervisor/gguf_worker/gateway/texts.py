"""/tokenize, /detokenize and /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.gateway.embedding import as_base64, embed, pooling_of
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.exchange import Exchange
from gguf_worker.gateway.logprobs import spelled
from gguf_worker.gateway.model import ServedModel
from gguf_worker.gateway.requests import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from gguf_worker.work import Work, new_id


async def tokenize(exchange: Exchange) -> None:
    """A text's tokens, in the shape of llama.cpp's server."""
    request = TokenizeRequest.parse(exchange.body)
    model = await exchange.gateway.catalogue.get(request.model)
    tokens: Sequence[object] = await model.route.tokenize(
        request.content, add_special=request.add_special, parse_special=request.parse_special
    )
    if request.with_pieces:
        tokens = [{"id": token, "piece": await _piece(model, token)} for token in tokens]
    await exchange.reply.json({"tokens": tokens})


async def _piece(model: ServedModel, token: object) -> str:
    assert isinstance(token, int)
    return spelled(await model.route.detokenize([token], unparse_special=True))


async def detokenize(exchange: Exchange) -> None:
    """The text of tokens."""
    request = DetokenizeRequest.parse(exchange.body)
    model = await exchange.gateway.catalogue.get(request.model)
    raw = await model.route.detokenize(request.tokens, unparse_special=True) if request.tokens else b""
    await exchange.reply.json({"content": raw.decode("utf-8", "replace")})


async def embeddings(exchange: Exchange) -> None:
    """A vector for each text."""
    request = EmbeddingRequest.parse(exchange.body)
    model = await exchange.gateway.catalogue.get(request.model)
    pooling = pooling_of(model, request.pooling)
    if request.dimensions not in (None, model.about.n_embd_out):
        raise ApiError(
            f"the model's vectors have {model.about.n_embd_out} dimensions, and no others", param="dimensions"
        )
    inputs = [await model.tokens_of(given) for given in request.inputs]
    for tokens in inputs:
        if len(tokens) > model.most_rows:
            raise ApiError(
                f"the model's context holds {model.most_rows} tokens; an input has {len(tokens)}",
                param="input",
                code="context_length_exceeded",
            )
    vectors = await _embed_all(model, inputs, pooling, exchange.work)
    used = sum(map(len, inputs))
    await exchange.reply.json(
        {
            "object": "list",
            "model": model.name,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": as_base64(vector) if request.encoding == "base64" else vector,
                }
                for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }
    )


async def _embed_all(
    model: ServedModel, inputs: Sequence[Sequence[int]], pooling: str, work: Work
) -> list[list[float]]:
    """As many at the same time as there is room for."""
    need = model.need(len(inputs), max(map(len, inputs)))
    vectors: dict[int, list[float]] = {}

    async def one(index: int, limiter: anyio.Semaphore) -> None:
        async with limiter:
            vectors[index] = await embed(model, inputs[index], pooling, replace(work, work_id=new_id()))

    async with model.admission.admitted(need, work), plain_task_group() as tasks:
        limiter = anyio.Semaphore(need.slots)
        for index in range(len(inputs)):
            tasks.start_soon(one, index, limiter)
    return [vectors[index] for index in range(len(inputs))]
