"""Rows of a model as one vector."""

from __future__ import annotations

import math
import struct

import pytest

from gguf_worker.gateway.embedding import _Pool
from gguf_worker.gateway.errors import ApiError


def test_vector_has_length_one() -> None:
    pool = _Pool("mean")
    for row in ((1.0, 2.0), (5.0, 6.0)):
        pool.add(struct.pack("<2f", *row), 2)
    assert pool.vector() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_vector_that_is_none_is_told(value: float) -> None:
    """JSON has no such numbers."""
    pool = _Pool("last")
    pool.add(struct.pack("<2f", 1.0, value), 2)
    with pytest.raises(ApiError, match="not finite"):
        pool.vector()
