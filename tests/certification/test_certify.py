"""Certifying toy models: what is equal is called equal, and what is not is measured."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from gguf_worker import GgufWorkerError, Recipe, ShardSpec, inspect
from gguf_worker.certification import Certificate, CertifyPlan, certify
from gguf_worker.certification.recording import Recording
from gguf_worker.certification.runs import Filler, Seat
from toy import KINDS
from toy.architectures import VARIANTS, build

pytestmark = pytest.mark.anyio

KIND = "llama-q8_0"
TEXTS = ("the thing in the other hand", "a", "and one more of them, which is rather longer")


async def _certify(model: Path, cache: Path, recipe: Recipe, **changes: Any) -> Certificate:
    spec = ShardSpec(str(model), recipe=recipe, cache_dir=str(cache))
    found = await inspect(str(model), cache_dir=str(cache))
    arguments: dict[str, Any] = {"cuts": ((3,), (2, 4)), "prompts": TEXTS, "n_random": 80, "n_steps": 5}
    return await certify(CertifyPlan(spec=spec, found=found, **(arguments | changes)))


async def test_certify_equal_cuts(build_toy: Callable[[str], Path], cache_dir: Path) -> None:
    """Cuts that equal the unsplit model give an exact certificate, which says what was compared with what;
    with cells of each session's own and few rows at once it is invariant in both ways."""
    model = build_toy(KIND)
    recipe = Recipe(n_ctx=512, n_threads=1, n_ubatch=32, kv_unified=False)
    certificate = await _certify(model, cache_dir, recipe)
    assert certificate.is_exact
    assert certificate.is_batch_invariant
    assert certificate.is_chunk_invariant
    assert [cut.cuts for cut in certificate.cuts] == [(3,), (2, 4)]
    assert [len(cut.shards) for cut in certificate.cuts] == [2, 3]
    assert certificate.recipe.prefill_chunk == 32
    assert [file[0] for file in certificate.files] == [model.name]
    n_vocab = certificate.model["n_vocab"]
    decoded = 5 * (len(TEXTS) + 1)
    for cut in certificate.cuts:
        assert cut.batched.compared == decoded * n_vocab
        assert cut.alone.compared == cut.stepwise.compared + decoded * n_vocab
    assert Certificate.from_map(certificate.to_map()) == certificate


async def test_certify_cut_that_rounds_is_not_exact(
    build_toy: Callable[[str], Path], cache_dir: Path
) -> None:
    """A boundary of 16 bits rounds between the stages: the certificate says no, and by how much."""
    recipe = Recipe(n_ctx=512, n_threads=1, boundary="f16")
    certificate = await _certify(build_toy(KIND), cache_dir, recipe, cuts=((3,),))
    (cut,) = certificate.cuts
    assert not certificate.is_exact
    assert 0 < cut.alone.different < cut.alone.compared
    assert 0 < cut.alone.largest < 1


async def test_certify_recipe_that_is_not_invariant(
    build_toy: Callable[[str], Path], cache_dir: Path
) -> None:
    """With weights in f32 a row in company has other bits than alone, and many rows others than one by one;
    the cut equals the unsplit model all the same."""
    recipe = Recipe(n_ctx=512, n_threads=1)
    certificate = await _certify(build_toy("llama-f32-untied"), cache_dir, recipe, cuts=((3,),))
    assert certificate.is_exact
    assert not certificate.is_batch_invariant
    assert not certificate.is_chunk_invariant
    assert certificate.chunk_invariance.different > 0


@pytest.mark.parametrize("model", ["llama-q8_0", "mamba"])
async def test_certify_rows_that_missed_their_step_are_sent_again(
    model: str, build_toy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that did not all come in time are taken back and sent again, also where a session cannot be
    trimmed; the certificate is the same."""
    late: list[bool] = []
    taken_back: list[Seat] = []
    until_computing, take_back = Filler._until_computing, Seat.take_back

    async def be_late_every_second_time(self: Filler, stage: int, rows_before: int) -> None:
        late.append(not late or not late[-1])
        if not late[-1]:
            await until_computing(self, stage, rows_before)
        while late[-1] and (await self._workers[stage].health()).rows < rows_before + self._n_rows():
            await anyio.lowlevel.checkpoint()

    async def count_and_take_back(self: Seat) -> None:
        taken_back.append(self)
        await take_back(self)

    monkeypatch.setattr(Filler, "_until_computing", be_late_every_second_time)
    monkeypatch.setattr(Seat, "take_back", count_and_take_back)
    path = build_toy(model) if model in KINDS else build(VARIANTS[model], tmp_path)
    recipe = Recipe(n_ctx=512, n_threads=1)
    certificate = await _certify(path, tmp_path / "cache", recipe, cuts=((4,),), n_random=20)
    assert taken_back
    assert certificate.is_exact
    assert certificate.cuts[0].batched.compared == 5 * (len(TEXTS) + 1) * certificate.model["n_vocab"]


async def test_certify_without_room_for_the_logits_says_where(tmp_path: Path) -> None:
    """A full disk is one error with the folder and the remedy, and leaves nothing to be written later."""
    with Recording(str(tmp_path)) as recording:
        recording.put(("alone", 0, 0), b"1234")
        with limited_file_size(6), pytest.raises(GgufWorkerError) as caught:
            recording.put(("alone", 0, 1), b"5678")
        assert caught.value.code == "no_space"
        assert str(tmp_path) in caught.value.message
        assert "TMPDIR" in caught.value.message
        assert recording.keys == (("alone", 0, 0),)
        assert recording.get(("alone", 0, 0)) == b"1234"


@contextmanager
def limited_file_size(n_bytes: int) -> Iterator[None]:
    """In which no file grows past so many bytes: as on a full disk, a write is short, and the next fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


async def test_certify_with_too_small_a_context_is_refused(
    build_toy: Callable[[str], Path], cache_dir: Path
) -> None:
    """Where the sequences cannot fit, nothing is compared, and the error has the figures and the remedy."""
    recipe = Recipe(n_ctx=256, n_batch=256, n_threads=1)
    with pytest.raises(GgufWorkerError, match=r"n_ctx 256 leaves 48 rows .* larger n_ctx or fewer steps"):
        await _certify(build_toy(KIND), cache_dir, recipe, n_steps=47)


async def test_certify_cut_that_is_not_allowed_is_refused(
    build_toy: Callable[[str], Path], cache_dir: Path
) -> None:
    """A cut outside the model is the worker's to refuse."""
    layers = KINDS[KIND].layers
    with pytest.raises(GgufWorkerError):
        await _certify(build_toy(KIND), cache_dir, Recipe(n_ctx=512), cuts=((layers + 1,),))
