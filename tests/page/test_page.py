"""The status page in a browser, over a service of the fake engine."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from commandline import CommandLine
from page.asking import complete
from page.conftest import MISSING, OpenPage
from served import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason=MISSING).expect
expect.set_options(timeout=30_000)

KEY = "a-key-of-this-test"
HOSTILE = "<img src=x onerror=alert(1)><b onclick=alert(2)>"


@pytest.fixture
def served(gguf_worker: CommandLine) -> Iterator[Served]:
    """Three workers that come back at once, with the API."""
    options = ("--shards", "3", "--http", "127.0.0.1:0", "--restart-backoff", "0.2", "--json")
    with serving(gguf_worker, *options) as service:
        service.wait_notified("READY=1")
        yield service
        assert service.stop() == 0


def span(first: int, last: int) -> str:
    """Layers, as the page writes them."""
    return f"{first}\N{EN DASH}{last}"


def ready(page: Page) -> Page:
    expect(page.locator("#phase")).to_have_text("ready")
    return page


def test_killed_worker_is_shown_with_its_cause(served: Served, open_page: OpenPage) -> None:
    """While it is looked at: the count, the cause, a word for those who listen. After a reload as well."""
    page = ready(open_page(served.address))
    middle = page.locator(".stage", has_text=f"Layers {span(4, 7)}")
    expect(middle.locator(".state")).to_have_text("ready")
    expect(page.locator("#no-ends")).to_be_visible()
    os.kill(served.pids()[1], signal.SIGKILL)

    expect(page.locator("#ends li")).to_contain_text("killed by SIGKILL")
    expect(page.locator("#now > div", has_text="Restarts").locator("dd")).to_have_text("1")
    expect(middle.locator("dt:text('Restarts') + dd")).to_have_text("1")
    expect(page.get_by_role("status")).to_contain_text(f"layers {span(4, 7)}: ")
    ready(page).reload()
    ready(page).locator("#ends summary").click()
    expect(page.locator("#ends .more")).to_contain_text("Cause signal_other")
    expect(page.locator("#chart .end")).to_have_count(1)


def test_generation_is_shown_with_the_times_of_its_stages(served: Served, open_page: OpenPage) -> None:
    """As a bar with words, and as a table."""
    page = ready(open_page(served.address))
    complete(served, 12)
    item = page.locator("#generations > li")
    expect(item).to_contain_text("→ 12 tokens")
    words = re.compile(f"^Time: layers {span(0, 3)} .*, layers {span(8, 11)} ")
    expect(item.get_by_role("img")).to_have_accessible_name(words)
    item.locator("summary").click()
    names = [f"layers {span(first, first + 3)}" for first in (0, 4, 8)]
    expect(item.locator("tbody th[scope=row]")).to_have_text(names)
    expect(page.locator("#chart .line")).to_have_count(1)
    expect(page.locator("#minutes tr").first).to_be_attached()


def test_what_is_open_stays_open(served: Served, open_page: OpenPage) -> None:
    """Whatever else changes: the focus as well, so that nobody is thrown back to the top."""
    page = ready(open_page(served.address))
    complete(served, 4)
    first = page.locator("#generations details").first
    first.locator("summary").click()
    complete(served, 5)
    expect(page.locator("#generations > li")).to_have_count(2)
    expect(page.locator("#generations details[open]")).to_have_count(1)
    assert "4 tokens" in page.evaluate("document.activeElement.textContent")


def test_keyboard_reaches_everything(served: Served, open_page: OpenPage) -> None:
    """In the order of the page, with a mark that is seen, and opens what is closed."""
    complete(served, 4)
    page = ready(open_page(served.address))
    expect(page.locator("#generations > li")).to_have_count(1)
    reached = []
    for _ in range(3):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 18)"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
    assert reached[:2] == ["Skip to the route", "By the minute"]
    page.keyboard.press("Enter")
    expect(page.locator("#generations details[open]")).to_have_count(1)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Times of each stage"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(served: Served, open_page: OpenPage, scheme: str) -> None:
    """Names, roles, order of headings, contrast in both schemes, and the rest of axe's rules."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="`make test-page` installs axe")
    complete(served, 4)
    os.kill(served.pids()[0], signal.SIGKILL)
    page = ready(open_page(served.address, color_scheme=scheme))
    expect(page.locator("#ends li")).to_have_count(1)
    ready(page)
    for summary in page.locator("summary").all():
        summary.click()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.locator("h1").count() == 1
    assert page.get_attribute("html", "lang") == "en"


def test_phone_has_no_horizontal_scroll(served: Served, open_page: OpenPage) -> None:
    """At 320 pixels, with everything open."""
    complete(served, 4)
    os.kill(served.pids()[2], signal.SIGKILL)
    page = ready(open_page(served.address, width=320, height=640))
    expect(page.locator("#ends li")).to_have_count(1)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_still_where_motion_is_not_wanted(served: Served, open_page: OpenPage) -> None:
    """Nothing moves by itself."""
    page = ready(open_page(served.address, reduced_motion="reduce"))
    assert page.evaluate("document.getAnimations().length") == 0


def test_nothing_that_is_told_becomes_html(served: Served, open_page: OpenPage) -> None:
    """Though every name, cause, id and line of stderr that the server tells is full of it."""
    complete(served, 4)
    os.kill(served.pids()[0], signal.SIGKILL)
    page = ready(open_page(served.address))
    expect(page.locator("#ends li")).to_have_count(1)
    event = hostile(snapshot(served))
    stream = f"event: snapshot\ndata: {json.dumps(event)}\n\n"
    page.route("**/v1/events", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))
    page.reload()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.get_by_text(HOSTILE).count() > 5
    expect(page.locator("main img, main b, header img:not([src='/icon.svg'])")).to_have_count(0)


def snapshot(served: Served) -> Any:
    """The first event."""
    connection = http.client.HTTPConnection(*served.address, timeout=30)
    connection.request("GET", "/v1/events")
    lines = iter(connection.getresponse().readline, b"")
    data = next(line for line in lines if line.startswith(b"data: "))
    connection.close()
    return json.loads(data[6:])


def hostile(value: Any, name: str = "") -> Any:
    """The same with other texts, where these are no figures in disguise."""
    if isinstance(value, dict):
        return {key: hostile(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner, name) for inner in value]
    is_figure = not isinstance(value, str) or name in ("layers", "time", "unit")
    return value if is_figure else HOSTILE


def test_key_is_asked_for_and_kept_in_memory_only(gguf_worker: CommandLine, open_page: OpenPage) -> None:
    """A wrong one is refused with words; a reload asks again."""
    with serving(gguf_worker, "--http", "127.0.0.1:0", "--json", GGUF_WORKER_API_KEY=KEY) as service:
        service.wait_notified("READY=1")
        page = open_page(service.address)
        expect(page.get_by_label("API key")).to_be_focused()
        expect(page.get_by_role("main")).to_be_hidden()
        page.keyboard.type("not-the-key-of-this-test")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not one of this server")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Show the status").click()
        ready(page)
        kept = "[localStorage.length, sessionStorage.length, document.cookie]"
        assert page.evaluate(kept) == [0, 0, ""]
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()
        assert service.stop() == 0


def test_lost_server_is_told(gguf_worker: CommandLine, open_page: OpenPage) -> None:
    """What was shown last stays, and the page says that it is not live any more."""
    with serving(gguf_worker, "--http", "127.0.0.1:0", "--json") as service:
        service.wait_notified("READY=1")
        page = ready(open_page(service.address))
        expect(page.locator("#connection")).to_have_text("live")
        assert service.stop() == 0
        expect(page.locator("#connection")).to_contain_text("not connected")
        expect(page.locator("#phase")).to_have_text("stopped")
