"""What does it cost to run out of process, and in stages?

Greedy decode of the same prompt by llama.cpp in this process, and through one, two and three supervised
workers; all with the same recipe and number of threads. Rounds are interleaved, so that a machine that slows
down slows all of them; the median of the rounds is shown.

    make bench
    PYTHONPATH=tests python bench/decode_overhead.py MODEL [--tokens 64] [--rounds 5] [--threads 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

import gguf_worker
from gguf_worker import Recipe, Route, ShardSpec
from gguf_worker.planning.partition import balanced
from reference import Reference, Settings, most_likely

PROMPT = "The first rule of a good workshop is that every tool has its place, because"
STAGES = (1, 2, 3)


def in_process(reference: Reference, n_tokens: int) -> float:
    """Decode speed of the library itself, in tokens a second."""
    reference.clear()
    prompt = reference.tokenize(PROMPT)
    token = most_likely(reference.forward(prompt, 0)[-4 * reference.n_vocab :])
    began = time.perf_counter()
    for step in range(n_tokens):
        token = most_likely(reference.forward([token], len(prompt) + step))
    return n_tokens / (time.perf_counter() - began)


async def through(route: Route, n_tokens: int) -> float:
    """Decode speed of a route, in tokens a second; the first token comes from the prefill and is left out."""
    generation = route.generate(await route.tokenize(PROMPT), max_tokens=n_tokens + 1)
    began = time.perf_counter()
    async for step in generation:
        if step.index == 0:
            began = time.perf_counter()
    return (len(generation.tokens) - 1) / (time.perf_counter() - began)


def specs(model: Path, n_stages: int, n_layer: int, threads: int) -> list[ShardSpec]:
    return [
        ShardSpec(model=str(model), layers=layers, recipe=Recipe(n_threads=threads))
        for layers in balanced(n_layer, n_stages, lambda _, start, end: end - start)
    ]


async def measure(model: Path, n_tokens: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """Speeds of each way, a value per round; a first round warms up and is thrown away."""
    n_layer = (await gguf_worker.inspect(str(model))).n_layer
    speeds: dict[str, list[float]] = {}
    with Reference(model, Settings(threads=threads)) as reference:
        for number in range(rounds + 1):
            found = {"in process": in_process(reference, n_tokens)}
            for n_stages in STAGES:
                async with Route.start(specs(model, n_stages, n_layer, threads)) as route:
                    found[f"{n_stages} worker{'s' * (n_stages > 1)}"] = await through(route, n_tokens)
            if number > 0:
                for name, speed in found.items():
                    speeds.setdefault(name, []).append(speed)
    return speeds


def show(speeds: Mapping[str, Sequence[float]]) -> None:
    base = statistics.median(speeds["in process"])
    for name, values in speeds.items():
        median = statistics.median(values)
        print(
            f"{name:12} {median:8.1f} tokens/s  {median / base:6.3f} x  "
            f"(from {min(values):.1f} to {max(values):.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    show(anyio.run(measure, options.model, options.tokens, options.rounds, options.threads))


if __name__ == "__main__":
    main()
