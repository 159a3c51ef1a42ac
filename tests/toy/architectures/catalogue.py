"""All variants, by name."""

from __future__ import annotations

from toy.architectures.dense import DENSE
from toy.architectures.encoders import ENCODERS
from toy.architectures.latent import LATENT_ATTENTION
from toy.architectures.mixtures import MIXTURES
from toy.architectures.particular import PARTICULAR
from toy.architectures.recurrent import RECURRENT
from toy.architectures.variant import Variant
from toy.architectures.windows import WINDOWS


def _by_name(*families: tuple[Variant, ...]) -> dict[str, Variant]:
    named: dict[str, Variant] = {}
    for family in families:
        for variant in family:
            if variant.name in named:
                raise ValueError(f"two variants are called {variant.name}")
            named[variant.name] = variant
    return named


VARIANTS = _by_name(DENSE, MIXTURES, WINDOWS, LATENT_ATTENTION, RECURRENT, PARTICULAR, ENCODERS)
