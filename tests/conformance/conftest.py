"""The four subjects: two engines, each in process and through the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.in_process import InProcess
from conformance.shard import Model, OpenShard, Shard, Subject
from conformance.through_worker import ThroughWorker

N_LAYER = 6
LLAMA_KIND = "llama-q8_0-tied"
"""Of this type flash attention gives the same bits however rows are batched, so that replay is exact."""

TRANSPORTS: dict[str, type[Subject]] = {"in_process": InProcess, "worker": ThroughWorker}


PROMPTS = tuple(
    tuple(3 + (seed * 131 + i * i * 7 + i * seed) % 253 for i in range(length))
    for seed, length in ((1, 12), (2, 7), (3, 9))
)
"""Three prompts of different lengths, without the special tokens at the start of both vocabularies."""


@pytest.fixture(scope="session")
def find_model(build_toy: Callable[[str], Path]) -> Callable[[str], Model]:
    """The model that an engine is tested on."""

    def find(engine: str) -> Model:
        path = f"fake:layers={N_LAYER},vocab=256" if engine == "fake" else str(build_toy(LLAMA_KIND))
        return Model(path=path, n_layer=N_LAYER, prompts=PROMPTS)

    return find


@pytest.fixture(scope="session")
def conformance_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of shard files for the whole suite."""
    return tmp_path_factory.mktemp("cache")


def _subject(name: str, find_model: Callable[[str], Model], cache: Path) -> Subject:
    engine, transport = name.split("-")
    return TRANSPORTS[transport](engine, find_model(engine), cache)


@pytest.fixture(params=["fake-in_process", "fake-worker", "llama-in_process", "llama-worker"])
def subject(
    request: pytest.FixtureRequest, find_model: Callable[[str], Model], conformance_cache: Path
) -> Subject:
    """Each engine behind each transport."""
    return _subject(request.param, find_model, conformance_cache)


@pytest.fixture(params=["fake-in_process", "fake-worker"])
def fake_subject(
    request: pytest.FixtureRequest, find_model: Callable[[str], Model], conformance_cache: Path
) -> Subject:
    """The fake engine behind each transport, where a test needs its faults or its arithmetic."""
    return _subject(request.param, find_model, conformance_cache)


@pytest.fixture(params=["fake-in_process", "llama-in_process"])
def in_process_subject(
    request: pytest.FixtureRequest, find_model: Callable[[str], Model], conformance_cache: Path
) -> Subject:
    """Each engine in process, where a test is about one step, which a worker composes by itself."""
    return _subject(request.param, find_model, conformance_cache)


@pytest.fixture(params=["fake-worker", "llama-worker"])
def worker_subject(
    request: pytest.FixtureRequest, find_model: Callable[[str], Model], conformance_cache: Path
) -> Subject:
    """Each engine behind the worker, where a test is about what the worker adds."""
    return _subject(request.param, find_model, conformance_cache)


@pytest.fixture
def open_shard() -> Iterator[OpenShard]:
    """Opens shards and closes them after the test."""
    with ExitStack() as stack:

        def open_one(subject: Subject, **changes: object) -> Shard:
            shard = subject.open(subject.options(**changes))
            stack.callback(shard.close)
            return shard

        yield open_one
