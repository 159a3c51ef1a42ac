"""The gateway as an application: OpenAI's API, llama.cpp's helpers, and the pages of whatever serves it."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gguf_worker.gateway.catalogue import no_such_model
from gguf_worker.gateway.completions import chat, complete
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.exchange import Endpoint
from gguf_worker.gateway.gateway import Gateway
from gguf_worker.gateway.texts import detokenize, embeddings, tokenize
from gguf_worker.serving.request import WithRequestId

NOT_KEPT = {"cache-control": "no-store"}


def gateway_app(gateway: Gateway, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """`pages` are those of what serves the model; they come first, so that they keep their paths."""
    return Starlette(
        routes=[*pages, *gateway_routes(gateway)],
        middleware=[Middleware(WithRequestId)],
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
    )


def gateway_routes(gateway: Gateway) -> list[BaseRoute]:
    """OpenAI's API with its helpers, /health and /metrics."""
    endpoints = {
        "/v1/completions": Endpoint(gateway, complete, generates=True),
        "/v1/chat/completions": Endpoint(gateway, chat, generates=True),
        "/v1/embeddings": Endpoint(gateway, embeddings),
        "/tokenize": Endpoint(gateway, tokenize),
        "/detokenize": Endpoint(gateway, detokenize),
    }

    async def models(request: Request) -> Response:
        gateway.account_of(request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": [card.body() for card in gateway.catalogue.cards()]})

    async def model(request: Request) -> Response:
        gateway.account_of(request.headers.get("authorization"))
        cards = {card.id: card for card in gateway.catalogue.cards()}
        name = request.path_params["name"]
        if name not in cards:
            raise no_such_model(name, list(cards))
        return JSONResponse(cards[name].body())

    async def health(_: Request) -> Response:
        """200 while a model can be asked, else 503; never waits for anything."""
        is_good = bool(gateway.catalogue.cards()) and not gateway.is_draining
        state = "ok" if is_good else "stopping" if gateway.is_draining else "no model"
        return JSONResponse({"status": state}, status_code=200 if is_good else 503, headers=NOT_KEPT)

    async def metrics(request: Request) -> Response:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(gateway)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type, **NOT_KEPT})

    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/metrics", metrics),
    ]


async def _http_error(_: Request, error: Exception) -> Response:
    """Paths and methods that there are not, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    told = ApiError(error.detail, status=error.status_code, code=code)
    headers = {**(error.headers or {}), **told.headers()}
    return JSONResponse(told.body(), status_code=told.status, headers=headers)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())
