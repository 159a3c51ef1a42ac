"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from gguf_worker._tasks import plain_task_group
from gguf_worker.gateway.answers import Answer, ChatAnswer, CompletionAnswer, Whole
from gguf_worker.gateway.exchange import Exchange
from gguf_worker.gateway.generating import Job, run
from gguf_worker.gateway.model import ServedModel
from gguf_worker.gateway.options import Options
from gguf_worker.gateway.pieces import Piece
from gguf_worker.gateway.requests import ChatRequest, CompletionRequest
from gguf_worker.generation.deadline import before_deadline

SEED = "x-seed"
"""The header that says how the first choice was seeded."""


async def complete(exchange: Exchange) -> None:
    """Continues texts."""
    request = CompletionRequest.parse(exchange.body)
    options = request.options
    model = await exchange.gateway.catalogue.get(request.model)
    model.admission.check_queue()
    prompts = [await model.tokens_of(prompt) for prompt in request.prompts]
    echoes: tuple[str, ...] = ()
    if request.echo:
        texts = [
            prompt if isinstance(prompt, str) else await model.text_of(prompt) for prompt in request.prompts
        ]
        echoes = tuple(text for text in texts for _ in range(options.n))
    answer = CompletionAnswer(
        id=CompletionAnswer.new_id(),
        model=model.name,
        fingerprint=model.fingerprint,
        logprobs=options.logprobs,
        include_usage=options.include_usage,
        echoes=echoes,
    )
    await _generate(exchange, model, options, prompts, answer)


async def chat(exchange: Exchange) -> None:
    """Says what comes next in a chat."""
    request = ChatRequest.parse(exchange.body)
    options = request.options
    model = await exchange.gateway.catalogue.get(request.model)
    model.admission.check_queue()
    with before_deadline(exchange.work):  # others may be waiting for theirs
        rendered = await exchange.gateway.prompts.render(model, request.messages)
    answer = ChatAnswer(
        id=ChatAnswer.new_id(),
        model=model.name,
        fingerprint=model.fingerprint,
        logprobs=options.logprobs,
        include_usage=options.include_usage,
    )
    await _generate(exchange, model, options, [await model.tokens_of_chat(rendered)], answer)


async def _generate(
    exchange: Exchange,
    model: ServedModel,
    options: Options,
    prompts: Sequence[tuple[int, ...]],
    answer: Answer,
) -> None:
    with before_deadline(exchange.work):
        grammar = "" if options.schema is None else await exchange.gateway.grammars.of_schema(options.schema)
    job = Job(prompts=prompts, options=options, grammar=grammar, work=exchange.work)
    exchange.reply.headers[SEED] = str(options.seed)
    tell = _stream if options.stream else _tell_at_once
    await tell(exchange, model, job, answer)


async def _tell_at_once(exchange: Exchange, model: ServedModel, job: Job, answer: Answer) -> None:
    n, best_of = job.options.n, job.options.best_of
    choices = [Whole() for _ in range(len(job.prompts) * best_of)]

    async def take(index: int, piece: Piece) -> None:
        choices[index].add(piece)

    usage = await run(model, job, exchange.gateway.figures, take)
    given = [
        choice
        for start in range(0, len(choices), best_of)
        for choice in _best(choices[start : start + best_of], n)
    ]
    await exchange.reply.json(answer.whole(given, usage))


def _best(choices: Sequence[Whole], n: int) -> list[Whole]:
    """The n likeliest, where there are more."""
    if len(choices) == n:
        return list(choices)
    return sorted(choices, key=lambda choice: choice.mean_logprob, reverse=True)[:n]


async def _stream(exchange: Exchange, model: ServedModel, job: Job, answer: Answer) -> None:
    reply = exchange.reply
    begun: set[int] = set()

    async def take(index: int, piece: Piece) -> None:
        if index not in begun:
            begun.add(index)
            if (first := answer.first(index)) is not None:
                await reply.event(first)
        if not piece.is_empty or (answer.logprobs and piece.drawn):
            await reply.event(answer.piece(index, piece))

    async with plain_task_group() as tasks:
        tasks.start_soon(reply.keep_alive)
        usage = await run(model, job, exchange.gateway.figures, take)
        tasks.cancel_scope.cancel()
    if answer.include_usage:
        await reply.event(answer.usage(usage))
    await reply.done()
