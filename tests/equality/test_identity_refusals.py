"""A llama worker holds one identity: whatever differs is refused by name, and nobody else notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from chain import SETTINGS, check_equal, greedy, specs
from gguf_worker import Identity, Route
from gguf_worker.errors import GgufWorkerError
from reference import Greedy, Reference
from tally import Tally
from toy import KINDS

pytestmark = pytest.mark.anyio

KIND = "llama-q8_0"
STEPS = 12


@pytest.fixture
def expected(build_toy: Callable[[str], Path]) -> Greedy:
    """A run of the unsplit model."""
    with Reference(build_toy(KIND), SETTINGS) as reference:
        return reference.greedy(reference.tokenize("the other thing"), STEPS)


@pytest.fixture
async def route(build_toy: Callable[[str], Path], cache_dir: Path) -> AsyncIterator[Route]:
    """One worker with the whole toy model."""
    async with Route.start(specs(build_toy(KIND), KINDS[KIND].layers, (), cache_dir)) as route:
        yield route


def _with_other(identity: Identity, field: str) -> tuple[Identity, str, str]:
    """The identity with one field changed, and that field's asked and loaded values as text."""
    match field:
        case "artifact":
            return replace(identity, artifact="0" * 64), "0" * 64, identity.artifact
        case "start":
            return replace(identity, start=1), "1", "0"
        case "end":
            return replace(identity, end=5), "5", "6"
        case "recipe.n_ctx":
            recipe = replace(identity.recipe, n_ctx=512)
            return replace(identity, recipe=recipe), "512", "4096"
        case "recipe.n_threads":
            recipe = replace(identity.recipe, n_threads=7)
            return replace(identity, recipe=recipe), "7", str(identity.recipe.n_threads)
        case "recipe.flash_attn":
            recipe = replace(identity.recipe, flash_attn=False)
            return replace(identity, recipe=recipe), "false", "true"
        case "recipe.type_k":
            recipe = replace(identity.recipe, type_k="q8_0")
            return replace(identity, recipe=recipe), "q8_0", "f16"
    raise KeyError(field)


async def _while_another_session_runs(
    route: Route,
    run: Greedy,
    tally: Tally,
    refused: Callable[[], Awaitable[None]],
) -> None:
    """Runs a whole generation in one session while `refused` is tried again and again in its midst."""
    done = anyio.Event()

    async def generate() -> None:
        check_equal(tally, run, await greedy(route, run.prompt, STEPS), "the undisturbed session")
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(generate)
        while not done.is_set():
            await refused()


@pytest.mark.parametrize(
    "field",
    ["artifact", "start", "end", "recipe.n_ctx", "recipe.n_threads", "recipe.flash_attn", "recipe.type_k"],
)
async def test_open_refused_when_identity_differs(
    field: str, route: Route, expected: Greedy, tally: Tally
) -> None:
    """An open with one wrong field is refused with its name and both values; another session goes on with the
    same bits as ever."""
    (worker,) = route.workers
    identity, asked, loaded = _with_other(worker.identity, field)

    async def refused() -> None:
        with pytest.raises(GgufWorkerError) as caught:
            await worker.open_session(identity=identity)
        error = caught.value
        assert error.code == "identity"
        assert error.fields == {f"{field}.expected": asked, f"{field}.actual": loaded}
        assert f"{field}.expected {asked}, {field}.actual {loaded}" in error.message

    await _while_another_session_runs(route, expected, tally, refused)


async def test_load_refused_when_loaded(
    build_toy: Callable[[str], Path], route: Route, expected: Greedy, tally: Tally
) -> None:
    """A second load is refused with the names and both values of what differs; another session goes on."""
    (worker,) = route.workers
    (first, _) = specs(build_toy(KIND), KINDS[KIND].layers, (3,), Path())

    async def refused() -> None:
        with pytest.raises(GgufWorkerError) as caught:
            await worker.load(first)
        error = caught.value
        assert error.code == "identity"
        assert (error.fields["end.expected"], error.fields["end.actual"]) == ("3", "6")

    await _while_another_session_runs(route, expected, tally, refused)
