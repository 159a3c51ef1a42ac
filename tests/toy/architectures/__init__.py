"""Toy models of llama.cpp's architectures, one or more variants of each.

path = build(VARIANTS["qwen2-tied"], folder)
python -m toy.architectures qwen2-tied FOLDER     # the same from a shell, with PYTHONPATH=tests
python -m toy.architectures                       # the names of all variants
"""

from toy.architectures.broken import BROKEN
from toy.architectures.catalogue import VARIANTS
from toy.architectures.variant import Variant
from toy.architectures.write import build, build_broken

__all__ = ["BROKEN", "VARIANTS", "Variant", "build", "build_broken"]
