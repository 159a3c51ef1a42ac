"""The page's files, and where they are found."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gguf_worker.status_page.board import Board
from gguf_worker.status_page.events import EventStream, Guard

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Path: file and type."""

HEADERS = {
    # Nothing from elsewhere, nothing inline, no text that becomes HTML or a script.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # asked for each time, and sent where it has changed
}


def page_routes(board: Board, guard: Guard | None = None) -> list[BaseRoute]:
    """The page with its events. Where there is a guard, events are for those that it lets pass; the files are
    for everybody, and ask for the key."""
    return [
        *(_file(path, name, media_type) for path, (name, media_type) in FILES.items()),
        Route("/v1/events", EventStream(board, guard), methods=["GET"]),
    ]


def _file(path: str, name: str, media_type: str) -> Route:
    content = (files(__package__) / "files" / name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**HEADERS, "etag": tag}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return Route(path, answer)
