"""Routes, session chains and text generation."""

from gguf_worker.generation.chain import SessionChain
from gguf_worker.generation.generate import FinishReason, Generation, Step
from gguf_worker.generation.record import GenerationRecord
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.generation.text import Utf8Stream
from gguf_worker.generation.timings import Timings

__all__ = [
    "FinishReason",
    "Generation",
    "GenerationRecord",
    "ReplaySettings",
    "Route",
    "SessionChain",
    "Step",
    "Timings",
    "Utf8Stream",
]
