"""SmolLM2 over nodes: the bits of a local chain, whatever carries them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_worker.testing.mesh.__main__ import equality_line
from gguf_worker.testing.mesh.equality import equality

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


async def test_smollm2_over_direct_and_relayed_nodes_is_the_local_chain(
    smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """Three direct nodes, and a relayed one in the middle: the same tokens and every logit to the bit."""
    results = await equality(smollm2_path, real_cache)
    for result in results:
        note(equality_line(result))
        assert result.compared > 1_000_000
        assert result.different == 0
    assert [result.name for result in results] == ["three direct nodes", "a relayed node in the middle"]
