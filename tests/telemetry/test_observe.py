"""What is told of a generation that ended: in the log, by OpenTelemetry's metrics and for Prometheus."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from generations import record
from gguf_worker.generation.record import GenerationRecord
from gguf_worker.logs import JsonLines
from gguf_worker.telemetry import RecordMetrics, observe
from gguf_worker.telemetry.instruments import Instruments


def line_of(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    (written,) = caplog.records
    line = json.loads(JsonLines().format(written))
    assert isinstance(line, dict)
    return line


def test_log_line_has_the_figures_and_the_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observe(record())
    line = line_of(caplog)
    assert (line["event"], line["level"]) == ("generation", "info")
    assert line["message"] == "3 tokens from 5 in 0.500 s (stop, 1 replays)"
    assert (line["request_id"], line["work_id"]) == ("request", "work")
    assert (line["first_token_ms"], line["token_ms"], line["total_ms"]) == (30.0, 15.0, 500.0)
    stages = line["stages"]
    assert isinstance(stages, list)
    assert [stage["stage"] for stage in stages] == ["layers 0:8 on node-a", "layers 8:16"]
    assert (stages[0]["compute_ms"], stages[0]["hop_ms"], stages[1]["batch"]) == (2.0, 0.3, 2.0)


def test_failure_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    observe(record(finish_reason="error", error="stage_lost"))
    line = line_of(caplog)
    assert (line["level"], line["error"]) == ("warning", "stage_lost")


def test_generation_that_never_began(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observe(GenerationRecord(request_id="request", work_id="work", finish_reason="cancelled"))
    line = line_of(caplog)
    assert "first_token_ms" not in line
    assert "token_ms" not in line


def test_metrics_by_the_conventions() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instruments = Instruments(provider)
    observe(record(), instruments=instruments)
    observe(record(finish_reason="error", error="stage_lost", token_us=[]), instruments=instruments)
    data = reader.get_metrics_data()
    assert data is not None
    points: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    first, failed = points["gen_ai.server.time_to_first_token"]
    assert (first.count, first.sum) == (1, 0.03)
    assert dict(failed.attributes or {})["error.type"] == "stage_lost"
    (token,) = points["gen_ai.server.time_per_output_token"]
    assert token.sum == pytest.approx(0.015)
    compute = {
        dict(point.attributes or {})["gguf_worker.layers"]: point
        for point in points["gguf_worker.stage.compute"]
    }
    assert compute["0:8"].sum == pytest.approx(0.004)
    assert set(compute) == {"0:8", "8:16"}
    assert sum(point.value for point in points["gguf_worker.generations"]) == 2
    assert sum(point.value for point in points["gguf_worker.stage.replays"]) == 2
    provider.shutdown()


def test_figures_for_prometheus() -> None:
    metrics = RecordMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)
    metrics.observe(record())
    metrics.observe(record(finish_reason="cancelled", time_to_first_token_us=None, token_us=[], stages=[]))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "gguf_worker_first_token_seconds_count 1.0",
        'gguf_worker_token_seconds_bucket{le="0.01"} 1.0',
        "gguf_worker_token_seconds_count 2.0",
        "gguf_worker_generation_seconds_sum 1.0",
        'gguf_worker_generations_total{finish_reason="cancelled"} 1.0',
        "gguf_worker_generated_tokens_total 6.0",
        'gguf_worker_stage_compute_seconds_total{layers="8:16"} 0.009',
        'gguf_worker_stage_replays_total{layers="8:16"} 1.0',
    ):
        assert line in lines
