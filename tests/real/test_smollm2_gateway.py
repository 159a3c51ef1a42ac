"""SmolLM2 behind OpenAI's API while what computes it is killed: the official client's streams go on."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import gguf
import pytest

from gguf_worker import ShardSpec, WorkerSettings
from gguf_worker.testing.api import Api, api_of_shards, undisturbed
from gguf_worker.testing.figures.latency import AT_ONCE
from gguf_worker.testing.figures.replay import CUTS, KEPT, PROMPT
from gguf_worker.testing.mesh.__main__ import audit_line, sweep_line
from gguf_worker.testing.mesh.audit import audit
from gguf_worker.testing.mesh.every_token import DEMO_RECIPE, demo
from gguf_worker.testing.mesh.site import site
from gguf_worker.testing.mesh.streams import streamed
from gguf_worker.testing.streams import GREEDY, SEEDED, Asked, Told, chat, completion, differences

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1200)]

N_TOKENS = 64
TEXTS = [
    completion("greedy", PROMPT, N_TOKENS, GREEDY),
    completion("seeded", PROMPT, N_TOKENS, SEEDED),
    chat("greedy", PROMPT, N_TOKENS, GREEDY),
    chat("seeded", PROMPT, N_TOKENS, SEEDED),
]
SOME = (1, 2, 9, 17, 31, 42, 55, 63)
"""Tokens after which something is killed over a mesh; `make faults-mesh` does it after each."""


def test_bytes_of_a_token_say_which_it_is(smollm2_path: Path) -> None:
    """So that streams with the same bytes in each token have the same token ids."""
    tokens = gguf.GGUFReader(smollm2_path).fields["tokenizer.ggml.tokens"].contents()
    assert len(set(tokens)) == len(tokens) == 49152


@dataclass(kw_only=True)
class Killer:
    """Kills a random worker whenever the client got a token: while the next one is being computed."""

    api: Api
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    positions: list[int] = field(default_factory=list)

    async def took(self, n_tokens: int) -> None:
        living = [worker for worker in self.api.route.workers if worker.exit is None]
        worker = self.chance.choice(living)
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait_for_end()
        self.positions.append(n_tokens)


@pytest.fixture(scope="module")
def whole(smollm2_path: Path, real_cache: Path) -> ShardSpec:
    """The model in one worker."""
    return ShardSpec(str(smollm2_path), recipe=DEMO_RECIPE, cache_dir=str(real_cache))


async def test_streams_outlive_a_kill_after_every_token(
    whole: ShardSpec, note: Callable[[str], None]
) -> None:
    """Three workers, 63 kills in each text: both endpoints, greedy and seeded. The client gets every token
    once, with its bytes, place and log-probabilities, and one usage; each kill is a restart."""
    expected = await undisturbed(whole, TEXTS)
    for one in expected:
        assert (len(one.tokens), one.finish_reasons, len(one.usages)) == (N_TOKENS, ["length"], 1)
    shards = [
        ShardSpec(whole.model, layers=layers, recipe=whole.recipe, cache_dir=whole.cache_dir)
        for layers in pairwise(CUTS)
    ]
    async with api_of_shards(shards, settings=WorkerSettings(restart=AT_ONCE), replay=KEPT) as api:
        for asked, wanted in zip(TEXTS, expected, strict=True):
            note(await kill_in(api, asked, wanted))
        assert [(await worker.health()).sessions for worker in api.route.workers] == [0, 0, 0]
        assert api.route.replay.budget.used == 0


async def kill_in(api: Api, asked: Asked, wanted: Told) -> str:
    """One text; gives what there is to say of it."""
    before = sum(supervisor.restarts for supervisor in api.route.supervisors)
    killer = Killer(api=api)
    told = await api.tell(asked, killer.took)
    assert differences(told, wanted) == []
    assert killer.positions == list(range(1, N_TOKENS))
    replays = api.replays
    assert replays >= N_TOKENS // 2  # two kills may fall on one replay, and the last ones behind the end
    await api.route.wait_ready()
    restarts = sum(supervisor.restarts for supervisor in api.route.supervisors) - before
    assert restarts == len(killer.positions)
    return f"stream of {asked.name}: {N_TOKENS} tokens, {restarts} kills, {replays} stages replayed, the same"


async def test_streams_over_a_mesh_outlive_kills_of_workers_and_nodes(
    whole: ShardSpec, smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """A worker under a node, and a node while another one holds its layers: the client gets the same, and
    each work has one receipt of each node."""
    async with site(demo(smollm2_path, real_cache)) as here:
        sweeps = await streamed(here, whole, N_TOKENS, SOME)
        ledgers = {name: node.spec.ledger for name, node in here.nodes.items()}
        await here.stop_all()
        found = await audit(ledgers, here.witness.works, here.nats)
    for sweep in sweeps:
        note(sweep_line(sweep))
        assert not sweep.problems
        assert (sweep.tokens, sweep.kills) == (N_TOKENS, len(SOME))
        assert sweep.stages_brought_back >= len(SOME)
    note(audit_line(found, "these streams"))
    assert not found.problems
    assert found.works >= len(sweeps) == 4  # a node that was away for too long begins another one
