"""Chat templates come with models from anywhere: they say what a prompt is, and can do nothing else."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from gateways import site
from gguf_worker.gateway.aside import Aside, AsideError

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "Hi <there>"}]


async def render(template: str, **more: Any) -> str:
    """In a process of its own."""
    variables = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", **more}
    async with Aside("gguf_worker.gateway.aside_template", timeout_s=20) as aside:
        return await aside.ask({"template": template, "variables": variables})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>Hi <there>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi <there>"}]'),
        ("{% for m in messages %}\n{{ m.role }}\n{% break %}{% endfor %}", "user\n"),
        ("  {% if add_generation_prompt %}\nyes{% endif %}", "yes"),
        ("{% generation %}a{% endgeneration %}", "a"),
        ("{{ unknown }}.", "."),
        ("{{ messages[0].content.upper() }}", "HI <THERE>"),
    ],
)
async def test_template_has_what_templates_expect(template: str, expected: str) -> None:
    assert await render(template) == expected


async def test_template_knows_the_date() -> None:
    assert await render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10**12 }}", "memory"),
        ("{{ ('%' + '1' * 9 + 'd') | format(1) }}", "memory|characters|time|long"),
        ("{% include 'x' %}", "no loader"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ {}.a.b }}", "undefined|has no attribute"),
    ],
)
async def test_template_that_misbehaves_is_refused(template: str, told: str) -> None:
    with pytest.raises(AsideError, match=told):
        await render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
        "{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
    ],
)
async def test_template_that_never_ends_is_ended(template: str) -> None:
    """And the next one is rendered as if nothing had been."""
    variables = {"messages": MESSAGES}
    async with Aside("gguf_worker.gateway.aside_template", timeout_s=20) as aside:
        with pytest.raises(AsideError, match="too long"):
            await aside.ask({"template": template, "variables": variables})
        assert await aside.ask({"template": "next", "variables": variables}) == "next"


@pytest.mark.parametrize(
    ("template", "code", "told"),
    [
        ("{{ raise_exception('roles must alternate') }}", "chat_template", "roles must alternate"),
        ("{% for a in range(10**9) %}{% endfor %}", "chat_template", "Range too big"),
        ("", "no_chat_template", "/v1/completions"),
    ],
)
async def test_refusal_is_the_clients_to_read(template: str, code: str, told: str) -> None:
    async with site() as served, served.http() as client:
        served.model._template = template
        answer = await client.post("/v1/chat/completions", json={"messages": MESSAGES})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert told in error["message"]


async def test_keys_are_kept_from_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever gets out of the sandbox finds none."""
    monkeypatch.setenv("GGUF_WORKER_API_KEY", "a-key-that-nobody-guesses")
    async with Aside("gguf_worker.gateway.aside_template", timeout_s=20) as aside:
        assert await aside.ask({"template": "x", "variables": {}}) == "x"
        assert aside._process is not None
        assert "GGUF_WORKER_API_KEY" not in psutil.Process(aside._process.pid).environ()
