"""Where spans and metrics go, by the usual environment variables, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

PROGRAM = """
import sys, time
from gguf_worker.logs import logging_to
from gguf_worker.telemetry import begin_generation, exporting, observe
from gguf_worker.work import Work
from generations import record

with logging_to(sys.stderr, as_json=True), exporting():
    for _ in range(3):
        began = time.perf_counter()
        observe(record(), begin_generation(Work(), model="SmolLM2"))
        took = time.perf_counter() - began
    ended = time.perf_counter()
print(took, time.perf_counter() - ended)
"""

WITHOUT_SDK = """
import sys
sys.modules["opentelemetry.sdk"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "opentelemetry.sdk" else find_spec(name, *rest)
"""


class Collector:
    """Takes what a process sends by OTLP over HTTP, and keeps it."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.url = ""

    def resources(self) -> dict[str, str]:
        return _texts(self.traces().resource_spans[0].resource.attributes)

    def traces(self) -> ExportTraceServiceRequest:
        return ExportTraceServiceRequest.FromString(self._body("/v1/traces"))

    def metrics(self) -> ExportMetricsServiceRequest:
        return ExportMetricsServiceRequest.FromString(self._body("/v1/metrics"))

    def _body(self, path: str) -> bytes:
        return b"".join(body for where, body in self.received if where == path)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.received.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def run(program: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**ours, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def test_everything_goes_to_the_endpoint() -> None:
    with collecting() as collector:
        ran = run(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_RESOURCE_ATTRIBUTES="site=here")
    assert "telemetry_trouble" not in ran.stderr
    names = [span.name for span in collector.traces().resource_spans[0].scope_spans[0].spans]
    assert names.count("generation") == 3
    resources = collector.resources()
    assert (resources["service.name"], resources["site"]) == ("gguf-worker", "here")
    assert "service.version" in resources
    metrics = {metric.name for metric in collector.metrics().resource_metrics[0].scope_metrics[0].metrics}
    assert "gen_ai.server.time_to_first_token" in metrics


def test_variables_of_the_specification_are_heeded() -> None:
    """A name, one signal only, and a sampler that takes nothing."""
    with collecting() as collector:
        run(
            OTEL_TRACES_EXPORTER="otlp",
            OTEL_METRICS_EXPORTER="none",
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/v1/traces",
            OTEL_SERVICE_NAME="mine",
        )
        assert {path for path, _ in collector.received} == {"/v1/traces"}
        assert collector.resources()["service.name"] == "mine"
        collector.received.clear()
        run(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_SAMPLER="always_off")
        assert {path for path, _ in collector.received} == {"/v1/metrics"}


def test_console() -> None:
    assert '"name": "generation"' in run(OTEL_TRACES_EXPORTER="console").stdout


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
    ids=["nothing said", "none", "disabled"],
)
def test_nothing_is_sent_unasked(environment: dict[str, str]) -> None:
    program = f"{PROGRAM}\nassert 'opentelemetry.sdk.trace' not in sys.modules"
    assert "telemetry_trouble" not in run(program, **environment).stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "there is no exporter 'zipkin' for traces"),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "pip install opentelemetry-exporter-otlp-proto-grpc",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
            "OpenTelemetry sends no traces",
        ),
    ],
    ids=["unknown exporter", "missing package", "bad setting"],
)
def test_what_cannot_be_set_up_is_one_warning(environment: dict[str, str], words: str) -> None:
    ran = run(**environment)
    assert words in ran.stderr
    assert ran.stderr.count("telemetry_trouble") == 1
    assert ran.stderr.count('"event": "generation"') == 3


def test_missing_sdk_is_named() -> None:
    ran = run(WITHOUT_SDK + PROGRAM, OTEL_TRACES_EXPORTER="otlp")
    assert "pip install 'gguf-worker[otel]'" in ran.stderr


def test_collector_that_is_gone_holds_nothing_up() -> None:
    """Neither while generations are told of nor at the end, which is bounded."""
    began = time.perf_counter()
    ran = run(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    took, ending = map(float, ran.stdout.split())
    assert took < 0.1
    assert ending < 5
    assert time.perf_counter() - began < 20


def _texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}
