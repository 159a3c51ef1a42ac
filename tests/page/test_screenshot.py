"""docs/status-page.png: the page over the real demo model, while a worker that was killed is brought back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import smollm2
from commandline import CommandLine
from page.asking import complete
from page.conftest import MISSING, OpenPage
from served import Served, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

expect = pytest.importorskip("playwright.sync_api", reason=MISSING).expect
expect.set_options(timeout=120_000)

PROMPT = "The first rule of a good workshop is that every tool has its place, because"


@pytest.fixture
def served(gguf_worker: CommandLine) -> Iterator[Served]:
    options = ("--shards", "3", "--ctx-size", "1024", "--http", "127.0.0.1:0", "--json")
    with serving(gguf_worker, *options, model=str(smollm2.find()), engine="llama") as service:
        service.wait_notified("READY=1")
        yield service
        assert service.stop() == 0


def test_page_of_a_route_that_lost_a_worker(served: Served, open_page: OpenPage, tmp_path: Path) -> None:
    """Generations that go on, one that ended, the death, its cause, and the pause that clients saw. The
    picture goes to the file that GGUF_WORKER_SCREENSHOT names, or nowhere that stays."""
    picture = os.environ.get("GGUF_WORKER_SCREENSHOT") or str(tmp_path / "page.png")
    page = open_page(served.address, width=1180, height=1000, device_scale_factor=1.5)
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(complete, served, n, prompt=PROMPT) for n in (24, 40)]
        expect(page.locator("#now > div", has_text="Generating").locator("dd")).to_contain_text("2")
        for answer in answers:
            answer.result()
        answers = [clients.submit(complete, served, n, prompt=PROMPT) for n in (48, 64, 160, 200)]
        expect(page.locator(".stage .state.computing").first).to_be_visible()
        os.kill(served.pids()[1], signal.SIGKILL)
        expect(page.locator("#ends li")).to_contain_text("killed by SIGKILL")
        expect(page.locator("#generations > li .busy")).to_have_count(2)
        expect(page.locator("#phase")).to_have_text("ready")
        page.screenshot(path=picture, full_page=True)
        for answer in answers:
            answer.result()
    assert Path(picture).stat().st_size > 50_000
