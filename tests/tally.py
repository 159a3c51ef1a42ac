"""Comparing logits bit for bit, and counting them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Tally:
    """Logits compared so far in this test run, and how many of them differed."""

    compared: int = 0
    different: int = 0

    def check(self, expected: bytes, actual: bytes, what: str) -> None:
        """Asserts that two runs of float32 values are the same bits (so that NaN and -0.0 count too)."""
        assert len(actual) == len(expected), f"{what}: {len(actual)} bytes, {len(expected)} expected"
        left, right = (np.frombuffer(values, dtype="<u4") for values in (expected, actual))
        different = int(np.count_nonzero(left != right))
        self.compared += len(left)
        self.different += different
        assert different == 0, f"{what}: {different} of {len(left)} logits differ"
