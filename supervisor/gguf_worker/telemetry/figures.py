"""What both kinds of metrics have in common: buckets, and how a stage is named."""

from __future__ import annotations

from gguf_worker.generation.record import StageRecord

FIRST_TOKEN_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0)
TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5)
GENERATION_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Upper bounds of buckets, in seconds."""


def layers_of(stage: StageRecord) -> str:
    """`0:16` of a stage that names itself `layers 0:16 on node-a`: a place in a route, whoever fills it."""
    return stage.label.removeprefix("layers ").partition(" ")[0]


def seconds(microseconds: float) -> float:
    return microseconds / 1e6
