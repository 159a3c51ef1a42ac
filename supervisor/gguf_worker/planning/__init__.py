"""Where to cut a model, by bytes. Pure: it asks nobody and reads no file."""

from gguf_worker.planning.plan import Plan, Stage, plan_capacities, plan_shards
from gguf_worker.planning.weights import Weights

__all__ = ["Plan", "Stage", "Weights", "plan_capacities", "plan_shards"]
