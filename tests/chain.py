"""A model as a chain of supervised workers, giving every logit, for comparison with `reference`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from gguf_worker import Output, Recipe, Route, SessionChain, ShardSpec
from reference import Greedy, Settings, most_likely
from tally import Tally

THREADS = 1
"""The same for workers and reference: from the 257th row on, ggml's flash attention adds up in an order that
depends on the number of threads."""

SETTINGS = Settings(threads=THREADS)


def specs(
    model: Path, n_layer: int, cuts: Sequence[int], cache_dir: Path, *, n_ubatch: int = SETTINGS.n_ubatch
) -> list[ShardSpec]:
    """One shard between each two cuts."""
    return [
        ShardSpec(
            model=str(model),
            layers=layers,
            recipe=Recipe(n_ubatch=n_ubatch, n_threads=THREADS),
            cache_dir=str(cache_dir),
        )
        for layers in pairwise((0, *cuts, n_layer))
    ]


async def greedy(route: Route, prompt: Sequence[int], steps: int) -> Greedy:
    """The same as `Reference.greedy`, in a session of its own through all stages of a route."""
    async with route.open_chain() as chain:
        return await greedy_in(chain, prompt, steps)


async def greedy_in(chain: SessionChain, prompt: Sequence[int], steps: int) -> Greedy:
    """The same in a fresh session that stays open."""
    prefill, row_bytes = await _forward(chain, prompt)
    tokens = [most_likely(prefill[-row_bytes:])]
    decode: list[bytes] = []
    while len(tokens) < steps:
        row, _ = await _forward(chain, tokens[-1:])
        decode.append(row)
        tokens.append(most_likely(row))
    return Greedy(prompt=tuple(prompt), tokens=tuple(tokens), prefill=prefill, decode=tuple(decode))


async def _forward(chain: SessionChain, tokens: Sequence[int]) -> tuple[bytes, int]:
    """Logits of every row, and the bytes of one row."""
    result = await chain.forward(tokens, Output.LOGITS_ALL)
    assert result.rows == len(tokens)
    assert result.logits is not None
    return bytes(result.logits), 4 * result.columns


def check_equal(tally: Tally, expected: Greedy, actual: Greedy, what: str) -> None:
    """Asserts the same tokens and the same bits of every logit."""
    tally.check(expected.prefill, actual.prefill, f"{what}, prefill")
    for step, (left, right) in enumerate(zip(expected.decode, actual.decode, strict=True)):
        tally.check(left, right, f"{what}, decode step {step}")
    assert actual.tokens == expected.tokens
