"""llama.cpp under replay: what a draw depends on beside the logits is the same after a loss."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chain import specs
from fakes import SETTINGS
from gguf_worker import FinishReason, Generation, RestartPolicy, Route, Sampling, Step
from gguf_worker.generation.replay import ReplaySettings
from toy import KINDS

pytestmark = pytest.mark.anyio

KIND = "llama-q8_0"
PROMPT = "the thing in the other hand"
N_TOKENS = 12
TIRELESS = replace(
    SETTINGS, restart=RestartPolicy(max_restarts=1000, backoff_initial_s=0.001, backoff_max_s=0.001)
)
KEPT = ReplaySettings(max_losses=1000)

PHRASE = 'root ::= "one " [a-m]{3} " two " [n-z]{3} " three " [0-9]+'
"""Where a text stands in it decides what may come next; a prompt that it governed would not fit."""
SAMPLINGS = {
    "grammar": Sampling(grammar=PHRASE),
    "drawn grammar": Sampling(grammar=PHRASE, temperature=2.0, seed=5),
    "penalties": Sampling(
        temperature=0.3,
        seed=6,
        repeat_penalty=1.8,
        frequency_penalty=0.5,
        presence_penalty=0.4,
        repeat_last_n=-1,
        logit_bias=((2, -math.inf),),  # the end of the text comes too soon
        top_logprobs=3,
    ),
    "all": Sampling(grammar=PHRASE, temperature=1.5, seed=7, repeat_penalty=1.8, repeat_last_n=8),
}


async def text_of(generation: Generation, kill: Callable[[Step], None] = lambda _: None) -> list[Step]:
    steps = []
    async for step in generation:
        steps.append(step)
        kill(step)
    return steps


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("replay", [KEPT, replace(KEPT, memory_bytes=0)], ids=["kept", "computed again"])
async def test_draws_are_the_same_after_a_loss(
    sampling: Sampling, replay: ReplaySettings, build_toy: Callable[[str], Path], cache_dir: Path
) -> None:
    """The stage that draws is killed after every third token, the other one in between: tokens, text and
    log-probabilities of the undisturbed run. The grammar goes on from where the text is, not from where the
    new session began."""
    shards = specs(build_toy(KIND), KINDS[KIND].layers, (3,), cache_dir)
    async with Route.start(shards, settings=TIRELESS, replay=replay) as route:
        prompt = await route.tokenize(PROMPT)
        expected = await text_of(route.generate(prompt, max_tokens=N_TOKENS, sampling=sampling))

        def kill(step: Step) -> None:
            if step.index % 3 and step.finish_reason is None:
                os.kill(route.workers[step.index % 3 - 1].pid, signal.SIGKILL)

        generation = route.generate(prompt, max_tokens=N_TOKENS, sampling=sampling)
        assert await text_of(generation, kill) == expected
        assert min(stage.replays for stage in generation.record.stages) >= 3
        if sampling.grammar:
            text = b"".join(step.text_bytes for step in expected)
            assert text.startswith(b"one ")


async def test_grammar_that_ends_the_text_ends_it_after_a_loss(
    build_toy: Callable[[str], Path], cache_dir: Path
) -> None:
    """The last token of a finite grammar is drawn by a session that did not see the first one."""
    shards = specs(build_toy(KIND), KINDS[KIND].layers, (3,), cache_dir)
    sampling = Sampling(grammar='root ::= "yes" | "no"', temperature=1.0, seed=1)
    async with Route.start(shards, settings=TIRELESS, replay=KEPT) as route:
        prompt = await route.tokenize(PROMPT)
        expected = await text_of(route.generate(prompt, max_tokens=N_TOKENS, sampling=sampling))
        for at in range(len(expected) - 1):
            generation = route.generate(prompt, max_tokens=N_TOKENS, sampling=sampling)

            def kill(step: Step, at: int = at) -> None:
                if step.index == at:
                    os.kill(route.workers[1].pid, signal.SIGKILL)

            assert await text_of(generation, kill) == expected
            assert generation.finish_reason is FinishReason.STOP
            assert generation.record.replays == 1
    assert b"".join(step.text_bytes for step in expected) in (b"yes", b"no")
    assert len(expected) > 1
