"""What generations did, told to people and machines: a log line, OpenTelemetry, and Prometheus.

`observe(record)` tells of one generation; `begin_generation(work)` before it gives a trace that the stages
go on with, and `stage_span` is their part of it. Nothing is sent anywhere unless `exporting` was asked for it
by the usual environment variables.
"""

from gguf_worker.telemetry.metrics import RecordMetrics as RecordMetrics
from gguf_worker.telemetry.observe import observe as observe
from gguf_worker.telemetry.setup import exporting as exporting
from gguf_worker.telemetry.spans import GenerationSpan as GenerationSpan
from gguf_worker.telemetry.spans import StageSpan as StageSpan
from gguf_worker.telemetry.spans import begin_generation as begin_generation
from gguf_worker.telemetry.spans import stage_span as stage_span
