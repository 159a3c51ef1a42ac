"""The shards of a service as the gateway's model."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError, RouteError
from gguf_worker.gateway.catalogue import OneModel
from gguf_worker.gateway.errors import ApiError, api_error
from gguf_worker.gateway.gateway import Gateway
from gguf_worker.gateway.model import ModelSettings, ServedModel
from gguf_worker.generation.local import LocalSource
from gguf_worker.generation.route import Route
from gguf_worker.logs import log_event
from gguf_worker.serving.service import Service
from gguf_worker.supervision.worker import Worker

log = logging.getLogger(__name__)

Judge = Callable[[Sequence[Worker]], bool]
"""Whether rows of these workers have the same bits whatever they are computed with."""


@asynccontextmanager
async def model_of_service(
    service: Service,
    gateway: Gateway,
    catalogue: OneModel,
    *,
    settings: ModelSettings,
    drain_timeout_s: float,
    is_chunk_invariant: Judge = lambda _: False,
) -> AsyncIterator[None]:
    """Has the catalogue give the service's model from when every shard is ready; `is_chunk_invariant` is
    asked then, once. Leaving this takes no more requests, waits for those that there are, and cuts off what
    is left."""
    service.parts["gateway"] = gateway
    async with plain_task_group() as tasks:
        tasks.start_soon(_fill, service, catalogue, settings, is_chunk_invariant, name="model of the gateway")
        try:
            yield
            await gateway.drain(drain_timeout_s)
        finally:
            await gateway.cut_off()
            tasks.cancel_scope.cancel()
            del service.parts["gateway"]


async def _fill(
    service: Service, catalogue: OneModel, settings: ModelSettings, is_chunk_invariant: Judge
) -> None:
    sources = [LocalSource(shard.supervisor) for shard in service.shards]
    try:
        workers = [await source.get() for source in sources]
        model = await ServedModel.of_route(
            catalogue.name, Route(sources), identity=_identity(workers), settings=settings
        )
        model.route.replay.chunk_invariant = is_chunk_invariant(workers)
        catalogue.model = model
    except RouteError as error:
        text = f"no API: these shards are no complete model ({error.message})"
        log_event(log, logging.INFO, "gateway_off", text)
        catalogue.refusal = ApiError(
            f"this server holds a part of a model: {error.message}", status=404, code="model_not_found"
        )
    except GgufWorkerError as error:  # the service itself ends with it, or is being stopped
        catalogue.refusal = api_error(error)
    else:
        text = f"{catalogue.name} is served by OpenAI's API"
        log_event(log, logging.INFO, "gateway_ready", text, model=catalogue.name)


def _identity(workers: Sequence[Worker]) -> str:
    """Artifact, layers and recipe of every stage."""
    return " ".join(repr(worker.identity) for worker in workers)
