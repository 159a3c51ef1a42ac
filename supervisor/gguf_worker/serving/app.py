"""The status of a service over HTTP: pages that are read and change nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gguf_worker.serving.exposition import exposition
from gguf_worker.serving.request import WithRequestId
from gguf_worker.serving.service import Phase, Service
from gguf_worker.serving.status import service_status

NOT_KEPT = {"cache-control": "no-store"}


def status_app(service: Service, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """The application that `gguf-worker serve --http` serves, with more pages."""
    return Starlette(routes=[*pages, *status_routes(service)], middleware=[Middleware(WithRequestId)])


def status_routes(service: Service) -> list[Route]:
    """`/healthz`, `/readyz`, `/metrics` and `/v1/status`, for any application that shows them."""

    async def healthz(_: Request) -> Response:
        """200 while this process lives and takes care of its workers, whether they are ready or not."""
        return _answer(service.is_live, "ok" if service.is_live else "a supervisor is stuck")

    async def readyz(_: Request) -> Response:
        """200 while every worker takes requests, else 503 with what is missing."""
        return _answer(service.phase is Phase.READY, service.summary())

    async def metrics(request: Request) -> Response:
        page, content_type = exposition(service, await service.look(), request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type, **NOT_KEPT})

    async def status(_: Request) -> Response:
        # In ASCII, because the name of a model's file may be no text.
        page = json.dumps(service_status(service, await service.look()))
        return Response(page, media_type="application/json", headers=NOT_KEPT)

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/v1/status", status),
    ]


def _answer(is_good: bool, text: str) -> Response:
    return PlainTextResponse(text + "\n", status_code=200 if is_good else 503, headers=NOT_KEPT)
