"""What can befall a mesh, one case each: no wrong output, no hang, no double receipt."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import anyio

from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation.generate import Step
from gguf_worker.node.mesh import Mesh
from gguf_worker.testing.mesh import frames
from gguf_worker.testing.mesh.mischief import mischief
from gguf_worker.testing.mesh.node import COMMAND
from gguf_worker.testing.mesh.site import PROMPT, Site
from gguf_worker.testing.mesh.strikes import Told, struck_text, text_problems
from gguf_worker.testing.process import LineProcess

N_TOKENS = 48
CASE_S = 120.0
"""Everything in a case has come to an end by then."""
LONG_PROMPT = 60
"""Times the prompt: a prefill in many pieces."""
GONE_S = 1.5
"""How long something is away that comes back within the relay's patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a case showed."""

    text: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something that befalls, and what must come of it."""

    name: str
    promise: str
    run: Callable[[Site, Sequence[Step]], Awaitable[Found]]
    """Gets the steps of the undisturbed text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """A case that was run."""

    case: Case
    found: str
    took_s: float
    problems: tuple[str, ...]


async def run_case(case: Case, site: Site, expected: Sequence[Step]) -> CaseResult:
    """Makes it happen once."""
    started = time.perf_counter()
    try:
        with anyio.fail_after(CASE_S):
            found = await case.run(site, expected)
    except TimeoutError:
        found = Found(text="no end", problems=(f"it did not come to an end within {CASE_S:g} s",))
    except (GgufWorkerError, EOFError) as error:
        found = Found(text="an error", problems=(str(error),))
    took_s = time.perf_counter() - started
    return CaseResult(case=case, found=found.text, took_s=took_s, problems=found.problems)


def all_cases() -> list[Case]:
    """The table, in the order in which it runs."""
    return [
        _case("kill -9 of a node, another has its layers", "the text goes on there", _node_killed),
        _case("kill -9 of a node, started again", "the text waits for it", _node_restarted),
        *_each_way("kill -9 of a worker under a node", "the text waits for the next worker", _worker_killed),
        _case("SIGSTOP of a node in mid-text", "it is given up and another stands in", _node_stopped),
        *_each_way("kill -9 of the NATS server, started again", "the text goes on", _nats_killed),
        _case("partition of the relay, healed", "the text goes on", _partition_healed),
        _case("partition of the relay, for good", "an error within the limits", _partition),
        *_each_way("a client that reads nothing", "others are not held up", _slow_reader),
        _case("every message of the relay twice", "the same text", _duplicates),
        _case("old messages of the relay among new ones", "the same text", _reordered),
        _case("an expired lease", "no route goes through it; back with its return", _lease_expired),
        *_each_way("kill -9 of a client", "its sessions end at every node", _client_killed),
        *_each_way("cancel during prefill", "every stage says what it freed", _cancelled_prefill),
        *_each_way("cancel during decode", "every stage says what it freed", _cancelled_decode),
    ]


_OneWay = Callable[[Site, Mesh, Sequence[Step]], Awaitable[Found]]


def _case(name: str, promise: str, run: Callable[[Site, Sequence[Step]], Awaitable[Found]]) -> Case:
    return Case(name=name, promise=promise, run=run)


def _each_way(name: str, promise: str, run: _OneWay) -> list[Case]:
    """Over direct streams, and over relayed ones."""
    return [
        _case(f"{name}, direct", promise, lambda site, steps: run(site, site.direct, steps)),
        _case(f"{name}, relayed", promise, lambda site, steps: run(site, site.relayed, steps)),
    ]


# ---- nodes and workers --------------------------------------------------------------------------


async def _node_killed(site: Site, expected: Sequence[Step]) -> Found:
    async def kill(told: Told) -> None:
        site.nodes[told.struck].signal(signal.SIGKILL)

    told = await struck_text(site, site.direct, n_tokens=N_TOKENS, blow=kill)
    problems = text_problems(told, expected)
    if told.record is not None and told.struck in told.record.stages[1].label:
        problems.append("no other node stood in")
    if told.struck:
        await site.restart(told.struck)
    return _brought_back(told, problems)


async def _node_restarted(site: Site, expected: Sequence[Step]) -> Found:
    async def kill(told: Told) -> None:
        site.nodes[told.struck].signal(signal.SIGKILL)
        site.tasks.start_soon(site.restart, told.struck)

    told = await struck_text(site, site.direct, n_tokens=N_TOKENS, blow=kill, stage=2)
    return _brought_back(told, text_problems(told, expected))


async def _worker_killed(site: Site, mesh: Mesh, expected: Sequence[Step]) -> Found:
    async def kill(told: Told) -> None:
        site.nodes[told.struck].kill_worker()

    told = await struck_text(site, mesh, n_tokens=N_TOKENS, blow=kill, stage=0)
    return _brought_back(told, text_problems(told, expected))


async def _node_stopped(site: Site, expected: Sequence[Step]) -> Found:
    async def stop(told: Told) -> None:
        site.nodes[told.struck].signal(signal.SIGSTOP)

    told = await struck_text(site, site.direct, n_tokens=N_TOKENS, blow=stop)
    if told.struck:
        site.nodes[told.struck].signal(signal.SIGCONT)
        await site.wait_known({told.struck})
    return _brought_back(told, text_problems(told, expected))


async def _lease_expired(site: Site, expected: Sequence[Step]) -> Found:
    site.nodes["middle"].signal(signal.SIGSTOP)
    await site.wait_known({"middle"}, gone=True)
    told = await struck_text(site, site.direct, n_tokens=N_TOKENS, blow=_nothing)
    problems = text_problems(told, expected)
    if told.plan.stages[1].node != "spare":
        problems.append("the route goes through the node that does not renew its lease")
    site.nodes["middle"].signal(signal.SIGCONT)
    await site.wait_known({"middle"})
    return Found(text=f"routed through {told.plan.stages[1].node}", problems=tuple(problems))


# ---- the way between ----------------------------------------------------------------------------


async def _nats_killed(site: Site, mesh: Mesh, expected: Sequence[Step]) -> Found:
    async def come_back() -> None:
        await anyio.sleep(GONE_S)
        await site.server.start()

    async def kill(_: Told) -> None:
        await site.server.kill()
        site.tasks.start_soon(come_back)

    told = await struck_text(site, mesh, n_tokens=N_TOKENS, blow=kill)
    await site.nats.wait_connected()
    await site.wait_known(set(site.nodes))
    return _brought_back(told, text_problems(told, expected))


async def _partition_healed(site: Site, expected: Sequence[Step]) -> Found:
    async def heal() -> None:
        await anyio.sleep(GONE_S)
        site.proxy.heal()

    async def cut(_: Told) -> None:
        site.proxy.cut()
        site.tasks.start_soon(heal)

    told = await struck_text(site, site.relayed, n_tokens=N_TOKENS, blow=cut)
    return _brought_back(told, text_problems(told, expected))


async def _partition(site: Site, expected: Sequence[Step]) -> Found:
    async def cut(_: Told) -> None:
        site.proxy.cut()

    mesh = Mesh(site.tracker, site.relayed.paths, settings=replace(site.relayed.settings, replace_s=3.0))
    told = await struck_text(site, mesh, n_tokens=N_TOKENS, blow=cut)
    site.proxy.heal()
    problems = text_problems(replace(told, error=None), expected[: len(told.steps)])  # right until there
    if told.error is None:
        problems.append("it did not end with an error")
    await site.wait_known(set(site.nodes))
    return Found(text=f"error {told.error.code}" if told.error else "no error", problems=tuple(problems))


async def _slow_reader(site: Site, mesh: Mesh, expected: Sequence[Step]) -> Found:
    async with frames.unread_session(mesh) as unread:
        told = await struck_text(site, mesh, n_tokens=N_TOKENS, blow=_nothing)
    problems = text_problems(told, expected)
    if not unread.is_held_up:
        problems.append(f"the node took {unread.sent} frames of a client that reads nothing")
    return Found(text=f"held up after {unread.sent} frames, others went on", problems=tuple(problems))


async def _duplicates(site: Site, expected: Sequence[Step]) -> Found:
    return await _disturbed(site, expected, late_by=0)


async def _reordered(site: Site, expected: Sequence[Step]) -> Found:
    return await _disturbed(site, expected, late_by=5)


async def _disturbed(site: Site, expected: Sequence[Step], *, late_by: int) -> Found:
    async with mischief(site.server.url, late_by=late_by) as count:
        told = await struck_text(site, site.relayed, n_tokens=N_TOKENS, blow=_nothing)
    problems = text_problems(told, expected)
    if count[0] < N_TOKENS:
        problems.append(f"only {count[0]} messages were repeated")
    return Found(text=f"the same text, {count[0]} messages repeated", problems=tuple(problems))


# ---- clients ------------------------------------------------------------------------------------


async def _client_killed(site: Site, mesh: Mesh, _: Sequence[Step]) -> Found:
    nodes = {name: len(node.lines) for name, node in site.nodes.items()}
    command = [*COMMAND, "generate", "--tracker", site.server.url, "-p", PROMPT, "-n", "3000"]
    command += ["--logit-bias", "0-inf"]  # which would end the text
    if mesh is site.relayed:
        command.append("--relay-only")
    async with LineProcess(command) as client:
        await client.wait_line(lambda line: line.startswith("  layers 8:12"))
        await anyio.sleep(0.5)  # the text is under way; anywhere in it will do
        client.signal(signal.SIGKILL)
        await client.wait()
    ended = []

    async def wait_ended(name: str, after: int) -> None:
        ended.append(await site.nodes[name].wait_logged("stage_session", after=after))

    with anyio.move_on_after(30):
        async with anyio.create_task_group() as tasks:
            for name in ("first", "last"):
                tasks.start_soon(wait_ended, name, nodes[name])
    problems = [] if len(ended) == 2 else ["the sessions did not end at every node"]
    rows = ", ".join(str(line["rows"]) for line in ended)
    return Found(text=f"sessions ended with {rows} rows", problems=tuple(problems))


async def _cancelled_prefill(site: Site, mesh: Mesh, _: Sequence[Step]) -> Found:
    told = await struck_text(
        site, mesh, n_tokens=N_TOKENS, blow=_cancel, at_forward=3, repeat_prompt=LONG_PROMPT
    )
    problems = ["a token was drawn before"] if told.steps else []
    return _acknowledged(told, problems)


async def _cancelled_decode(site: Site, mesh: Mesh, expected: Sequence[Step]) -> Found:
    told = await struck_text(site, mesh, n_tokens=N_TOKENS, blow=_cancel)
    return _acknowledged(told, text_problems(told, expected[: len(told.steps)]))


def _acknowledged(told: Told, problems: list[str]) -> Found:
    assert told.record is not None
    freed = [stage.kv_cells_freed for stage in told.record.stages]
    if told.record.finish_reason != "cancelled":
        problems.append(f"it ended as {told.record.finish_reason}")
    if None in freed:
        problems.append(f"not every stage acknowledged: {freed}")
    return Found(text=f"KV cells freed: {', '.join(map(str, freed))}", problems=tuple(problems))


async def _cancel(told: Told) -> None:
    told.scope.cancel()


async def _nothing(_: Told) -> None:
    """Falls, and does no harm."""


def _brought_back(told: Told, problems: list[str]) -> Found:
    return Found(text=f"the same text, {told.losses} stages brought back", problems=tuple(problems))
