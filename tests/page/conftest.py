"""Debian's Chromium, driven by Playwright. Without either of them these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from commandline import CommandLine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REMEDY = "sudo apt-get update && sudo apt-get install -y --no-install-recommends chromium fonts-dejavu-core"

FORESEEN = ("status of 401", "ERR_CONNECTION_REFUSED")
"""What the browser says where a key is needed, and where a server has ended."""
MISSING = "playwright is missing: `make test-page` installs it"

OpenPage = Callable[..., "Page"]


@pytest.fixture
def gguf_worker(cache_dir: Path) -> CommandLine:
    return CommandLine(cache_dir)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser for the tests of a file. While it is there, Playwright keeps this thread's event
    loop to itself; so it must not outlive them."""
    api = pytest.importorskip("playwright.sync_api", reason=MISSING)
    if CHROMIUM is None:
        pytest.skip(f"chromium is missing; run: {REMEDY}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens the page of a server in a window of its own. At the end its console must have told of no error,
    and nobody but that server must have been asked for anything."""
    contexts: list[BrowserContext] = []
    servers: set[str] = set()
    asked: set[str] = set()
    errors: list[str] = []

    def take(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(text in message.text for text in FORESEEN):
            errors.append(message.text)

    def open_at(address: tuple[str, int], *, width: int = 1180, height: int = 900, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", take)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        servers.add(f"{address[0]}:{address[1]}")
        page.goto(f"http://{address[0]}:{address[1]}/")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert errors == []
    assert asked <= servers
