"""OpenTelemetry's metrics of generations: by its conventions for servers of generative models, and our own
where it has none."""

from __future__ import annotations

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

import gguf_worker
from gguf_worker.generation.record import GenerationRecord, StageRecord
from gguf_worker.telemetry.figures import FIRST_TOKEN_S, GENERATION_S, TOKEN_S, layers_of, seconds

_COMMON = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "gguf_worker"}


class Instruments:
    """Everything that is measured; of the process's provider where none is given."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = metrics.get_meter("gguf_worker", gguf_worker.__version__, provider)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> metrics.Histogram:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=buckets)

        self._first_token = histogram(
            "gen_ai.server.time_to_first_token", "From the begin of the prefill.", FIRST_TOKEN_S
        )
        self._token = histogram(
            "gen_ai.server.time_per_output_token", "Mean of a generation's tokens but the first.", TOKEN_S
        )
        self._duration = histogram("gen_ai.server.request.duration", "Of a generation.", GENERATION_S)
        self._queue = histogram("gguf_worker.stage.queue", "Mean wait of a forward.", TOKEN_S)
        self._compute = histogram("gguf_worker.stage.compute", "Mean computation of a forward.", TOKEN_S)
        self._hop = histogram("gguf_worker.stage.hop", "Mean way of a forward, there and back.", TOKEN_S)
        self._replays = meter.create_counter(
            "gguf_worker.stage.replays", "{replay}", "Stages that were lost and brought back."
        )
        self._tokens = meter.create_counter(
            "gguf_worker.tokens", "{token}", "Read as input, drawn as output."
        )
        self._generations = meter.create_counter(
            "gguf_worker.generations", "{generation}", "That ended, by finish reason."
        )

    def record(self, record: GenerationRecord) -> None:
        """Adds one generation."""
        common = _COMMON | ({"error.type": record.error} if record.error else {})
        self._duration.record(seconds(record.total_us), common)
        if record.time_to_first_token_us is not None:
            self._first_token.record(seconds(record.time_to_first_token_us), common)
        if record.token_us:
            self._token.record(seconds(sum(record.token_us) / len(record.token_us)), common)
        self._tokens.add(record.prompt_tokens, common | {"gen_ai.token.type": "input"})
        self._tokens.add(record.tokens, common | {"gen_ai.token.type": "output"})
        self._generations.add(1, common | {"gguf_worker.finish_reason": record.finish_reason})
        for stage in record.stages:
            self._record_stage(stage)

    def _record_stage(self, stage: StageRecord) -> None:
        layers = {"gguf_worker.layers": layers_of(stage)}
        self._replays.add(stage.replays, layers)
        if stage.forwards:
            self._queue.record(seconds(stage.queue_us / stage.forwards), layers)
            self._compute.record(seconds(stage.compute_us / stage.forwards), layers)
            self._hop.record(seconds(stage.hop_us / stage.forwards), layers)
