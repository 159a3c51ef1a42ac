"""Whatever is done with a chain and whenever its stages are lost: every answer is that of a chain to which
nothing happened, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import anyio
import anyio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker import Output, Sampling, SessionChain
from gguf_worker.generation.replay import Replay, ReplaySettings
from stand_in import ROW_BYTES, Fate, Rules, StandInSource

BOUNDS = (0, 3, 6, 9, 12)
MOST_CHAINS = 3
SAMPLING = Sampling(temperature=1.0, seed=3)

TOKENS = st.integers(1, 30).map(lambda count: [2 + 7 * index % 250 for index in range(count)])
OUTPUT = st.sampled_from([Output.NONE, Output.LOGITS, Output.LOGITS_ALL, Output.TOKEN])
COMMAND = st.one_of(
    st.tuples(st.just("forward"), st.integers(0, 99), TOKENS, OUTPUT),
    st.tuples(st.just("forward"), st.integers(0, 99), st.just([5]), OUTPUT),
    st.tuples(st.just("cancel"), st.integers(0, 99), TOKENS, st.integers(0, 40)),
    st.tuples(st.just("trim"), st.integers(0, 99), st.integers(0, 100)),
    st.tuples(st.just("trim"), st.integers(0, 99), st.integers(80, 99)),
    st.tuples(st.just("fork"), st.integers(0, 99), st.integers(0, 100)),
)
LOSSES = st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=2, max_size=12)
"""Calls between one loss and the next, and whether the lost call was carried out."""


@dataclass
class Mesh:
    """A model in four stages."""

    rules: Rules
    replay: Replay
    sources: list[StandInSource] = field(init=False)

    def __post_init__(self) -> None:
        self.sources = [StandInSource(self.rules, layers) for layers in pairwise(BOUNDS)]

    async def open(self) -> SessionChain:
        return await SessionChain.open(self.sources, SAMPLING, replay=self.replay)


@dataclass
class Pair:
    """A chain that things happen to, and one that is spared."""

    chain: SessionChain
    spared: SessionChain

    async def forward(self, tokens: Sequence[int], output: Output) -> None:
        result = await self.chain.forward(tokens, output)
        expected = await self.spared.forward(tokens, output)
        assert (result.logits, result.token) == (expected.logits, expected.token)

    async def forward_and_cancel(self, tokens: Sequence[int], turns: int) -> None:
        """Gives up after some turns of the event loop; it may have been done by then."""
        before = self.chain.position
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.chain.forward, tokens, Output.NONE)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        if self.chain.position > before:
            await self.spared.forward(tokens, Output.NONE)

    async def trim(self, position: int) -> None:
        for chain in (self.chain, self.spared):
            await chain.trim(position)

    async def fork(self, position: int) -> Pair:
        return Pair(await self.chain.fork(position), await self.spared.fork(position))


async def carry_out(pairs: list[Pair], command: Sequence[object], *, can_trim: bool) -> None:
    """One command, on both chains of a pair. Where sessions cannot be trimmed, what would need it is left."""
    kind, number, *arguments = command
    assert isinstance(number, int)
    pair = pairs[number % len(pairs)]
    match kind, arguments:
        case "forward", [list(tokens), Output() as output]:
            await pair.forward(tokens, output)
        case "cancel", [list(tokens), int(turns)] if can_trim:
            await pair.forward_and_cancel(tokens, turns)
        case "trim", [int(percent)]:
            await pair.trim(pair.chain.position * percent // 100 if can_trim else 0)
        case "fork", [int(percent)] if len(pairs) < MOST_CHAINS:
            position = pair.chain.position
            pairs.append(await pair.fork(position * percent // 100 if can_trim else position))


async def check(commands: Sequence[Sequence[object]], rules: Rules, replay: Replay) -> None:
    mesh = Mesh(rules, replay)
    quiet = Mesh(
        Rules(can_trim=rules.can_trim, chunk_invariant=rules.chunk_invariant), Replay(replay.settings)
    )
    pairs = [Pair(await mesh.open(), await quiet.open())]
    for command in commands:
        await carry_out(pairs, command, can_trim=rules.can_trim)
        assert replay.budget.used <= replay.budget.limit
    for pair in pairs:
        assert pair.chain.tokens == pair.spared.tokens
        await pair.forward([9], Output.LOGITS)
        await pair.chain.close("stop")
        await pair.chain.release()
    assert [source.sessions for source in mesh.sources] == [[]] * len(mesh.sources)
    assert replay.budget.used == 0


@given(
    commands=st.lists(COMMAND, min_size=4, max_size=12),
    losses=LOSSES,
    refused=st.frozensets(st.integers(5, 60), max_size=2),  # the refusal of the first open is told
    kept_rows=st.sampled_from([0, 10, 60, 10_000]),
    can_trim=st.booleans(),
    chunk_invariant=st.booleans(),
)
@settings(max_examples=120, deadline=None, derandomize=True, database=None)
def test_answers_are_those_of_an_undisturbed_chain(
    commands: list[tuple[object, ...]],
    losses: list[tuple[int, bool]],
    refused: frozenset[int],
    kept_rows: int,
    can_trim: bool,
    chunk_invariant: bool,
) -> None:
    """With rows kept, some of them, or none; trimmed, forked, cancelled; in the pieces of the first time
    where they count, and in longer ones where not. At the end no session is left and no byte taken."""
    calls = list(zip(accumulate(gap for gap, _ in losses), (done for _, done in losses), strict=True))
    rules = Rules(
        fate=Fate(
            lost_before=frozenset(call for call, done in calls if not done),
            lost_after=frozenset(call for call, done in calls if done),
            refused=refused,
        ),
        can_trim=can_trim,
        chunk_invariant=chunk_invariant,
    )
    replay = Replay(
        ReplaySettings(memory_bytes=kept_rows * ROW_BYTES, max_losses=1000, wait_s=30),
        chunk_invariant=chunk_invariant,
    )
    anyio.run(check, commands, rules, replay)
