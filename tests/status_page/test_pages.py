"""The page's files: that they are there, what goes with them, and that they need nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import httpx
import pytest
from starlette.applications import Starlette

from gguf_worker.serving.app import status_app
from gguf_worker.serving.service import Service
from gguf_worker.status_page.board import Board
from gguf_worker.status_page.pages import FILES, page_routes
from watching import Told

pytestmark = pytest.mark.anyio


def text_of(name: str) -> str:
    return (files("gguf_worker.status_page") / "files" / name).read_text()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=page_routes(Board(Told()), guard=_refuse))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client:
        yield client


def _refuse(_: str | None) -> None:
    raise AssertionError("the files are for everybody")


@pytest.mark.parametrize("path", FILES)
async def test_files_are_served_with_a_strict_policy(client: httpx.AsyncClient, path: str) -> None:
    """Scripts and styles from this server alone, nothing inline, no frame around it, no text as HTML."""
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == FILES[path][1]
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert {policy[name] for name in ("frame-ancestors", "base-uri", "form-action")} == {"'none'"}
    assert policy["trusted-types"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_unchanged_file_is_not_sent_again(client: httpx.AsyncClient) -> None:
    """A new release is seen at once, and costs no more than a question until then."""
    tag = (await client.get("/page.js")).headers["etag"]
    again = await client.get("/page.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["index.html", "page.css", "page.js", "icon.svg"])
def test_files_name_nothing_elsewhere(name: str) -> None:
    """No address of another server but the names of SVG."""
    addresses = set(re.findall(r"(?:https?:)?//[a-z][\w.]+", text_of(name))) - {"http://www.w3.org"}
    assert addresses == set()


def test_nothing_is_inline() -> None:
    """Which the policy would refuse, and nobody would see before."""
    page = text_of("index.html")
    assert "<style" not in page
    assert re.findall(r"\s(?:style|on\w+)=", page) == []
    assert re.findall(r"<script[^>]*>[^<]", page) == []


def test_nothing_becomes_html() -> None:
    """The module has no way to do so."""
    script = text_of("page.js")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert way not in script


def test_every_id_that_the_module_asks_for_is_in_the_page() -> None:
    """And each once."""
    there = re.findall(r'\sid="([\w-]+)"', text_of("index.html"))
    assert len(there) == len(set(there))
    assert set(re.findall(r'byId\("([\w-]+)"\)', text_of("page.js"))) <= set(there)


async def test_page_keeps_the_paths_of_other_pages() -> None:
    """It is an addition to them."""
    service = Service("fake")
    app = status_app(service, page_routes(Board(Told())))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client:
        answers = [await client.get(path) for path in ("/", "/healthz", "/v1/status", "/metrics")]
    assert [answer.status_code for answer in answers] == [200] * 4
