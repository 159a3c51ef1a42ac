"""A model whose file changes under a running worker is not taken for the one that it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from fakes import PROMPT, SETTINGS
from gguf_worker import Recipe, ShardSpec, Supervisor
from gguf_worker.errors import LoadRejected

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("layers", [(0, 0), (0, 1)], ids=["whole", "part"])
async def test_worker_is_not_restarted_from_a_file_that_was_replaced(
    layers: tuple[int, int], build_toy: Callable[[str], Path], tmp_path: Path, cache_dir: Path
) -> None:
    """By one of the same name, size and time that differs in one bit: it is refused by its digest, once."""
    model, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    shutil.copy2(build_toy("llama-f32-untied"), model)
    _copy_with_another_bit(model, other)
    recipe = Recipe(n_ctx=256, n_batch=256)
    spec = ShardSpec(str(model), layers=layers, recipe=recipe, cache_dir=str(cache_dir))
    supervisor = Supervisor(spec, settings=replace(SETTINGS, restart=PROMPT))
    async with supervisor as worker:
        other.rename(model)
        os.kill(worker.pid, 9)
        await worker.wait_for_end()
        with anyio.fail_after(20), pytest.raises(LoadRejected, match=worker.identity.artifact) as caught:
            await supervisor.wait_ready()
        assert caught.value.code == "identity"
        assert (supervisor.generation, supervisor.restarts) == (2, 1)


def _copy_with_another_bit(source: Path, target: Path) -> None:
    data, status = bytearray(source.read_bytes()), source.stat()
    data[-1] ^= 1
    target.write_bytes(data)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
