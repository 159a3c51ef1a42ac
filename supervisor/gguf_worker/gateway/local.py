"""The shards of a service as the gateway's model."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
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


@asynccontextmanager
async def model_of_service(
    service: Service,
    gateway: Gateway,
    catalogue: OneModel,
    *,
    settings: ModelSettings,
    drain_timeout_s: float,
) -> AsyncIterator[None]:
    """Has the catalogue give the service's model from when every shard is ready. Leaving this takes no more
    requests, waits for those that there are, and cuts off what is left."""
    route = Route([LocalSource(shard.supervisor) for shard in service.shards])
    service.parts["gateway"] = gateway
    async with plain_task_group() as tasks:
        tasks.start_soon(_fill, catalogue, route, settings, name="model of the gateway")
        try:
            yield
            await gateway.drain(drain_timeout_s)
        finally:
            await gateway.cut_off()
            tasks.cancel_scope.cancel()
            del service.parts["gateway"]


async def _fill(catalogue: OneModel, route: Route, settings: ModelSettings) -> None:
    try:
        catalogue.model = await ServedModel.of_route(
            catalogue.name, route, identity=await _identity(route), settings=settings
        )
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


async def _identity(route: Route) -> str:
    """Artifact, layers and recipe of every stage."""
    workers = [stage for stage in await route.stages() if isinstance(stage, Worker)]
    return " ".join(repr(worker.identity) for worker in workers)
