"""Where OpenTelemetry's spans and metrics go, by its usual environment variables.

Something is sent where `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` name an exporter (`otlp`, `console`,
or another one that is installed), or `OTEL_EXPORTER_OTLP_ENDPOINT` says where to. Everything else of the
specification (endpoints, headers, samplers, limits, intervals) is read by the SDK itself. What is sent goes
through threads of the SDK: a collector that is slow or gone costs spans, and nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Literal

from opentelemetry import metrics, trace

import gguf_worker
from gguf_worker.logs import log_event

log = logging.getLogger(__name__)

SHUTDOWN_S = 3.0
"""How long the end of a process waits for what was not sent yet."""

Signal = Literal["traces", "metrics"]

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


@contextmanager
def exporting(service: str = "gguf-worker") -> Iterator[None]:
    """Sends this process's spans and metrics to wherever the environment says, while this is open; does
    nothing where it says nothing. `service` is its name unless the environment has another. Never fails:
    what cannot be set up is a warning in the log."""
    ends = [
        _begin("metrics", _begin_metrics, service),
        _begin("traces", _begin_traces, service),
    ]
    try:
        yield
    finally:
        _end([end for end in ends if end is not None])


def _begin(
    signal: Signal, begin: Callable[[list[str], str], Callable[[], object]], service: str
) -> Callable[[], object] | None:
    """Gives what ends it; None where there is nothing to end."""
    try:
        if exporters := _exporters(signal):
            return begin(exporters, service)
    except Exception as error:  # the SDK reads many variables, and complains of them in many ways
        _warn(f"OpenTelemetry sends no {signal}: {error}", error=str(error))
    return None


def _exporters(signal: Signal) -> list[str]:
    """The names of the exporters that were asked for."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    upper = signal.upper()
    named = os.environ.get(f"OTEL_{upper}_EXPORTER", "")
    if not named.strip():
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT")
        named = "otlp" if any(os.environ.get(name) for name in endpoints) else "none"
    return [name for name in map(str.strip, named.split(",")) if name not in ("", "none")]


def _begin_traces(exporters: list[str], service: str) -> Callable[[], object]:
    _check_installed()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
    for name in exporters:
        provider.add_span_processor(BatchSpanProcessor(_load("traces", name)()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _begin_metrics(exporters: list[str], service: str) -> Callable[[], object]:
    _check_installed()
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    readers = [PeriodicExportingMetricReader(_load("metrics", name)()) for name in exporters]
    provider = MeterProvider(readers, resource=_resource(service), shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _check_installed() -> None:
    if find_spec("opentelemetry.sdk") is None:
        raise ModuleNotFoundError("its SDK is not installed; run pip install 'gguf-worker[otel]'")


def _load(signal: Signal, name: str) -> Any:
    """The exporter's class, found as every program with OpenTelemetry finds it."""
    if name == "otlp":
        protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
        )
        name = _PROTOCOLS.get(protocol.strip(), protocol)
    for found in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return found.load()
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise LookupError(
        f"there is no exporter {name!r} for {signal}; run pip install {package}, or correct the name"
    )


def _resource(service: str) -> Any:
    from opentelemetry.sdk.resources import Resource

    named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = named or bool(os.environ.get("OTEL_SERVICE_NAME"))
    attributes = {"service.version": gguf_worker.__version__}
    return Resource.create(attributes if named else attributes | {"service.name": service})


def _end(ends: list[Callable[[], object]]) -> None:
    """Sends what is left, within the time. The SDK's own limit is half a minute for each of them."""
    threads = [threading.Thread(target=_quietly, args=(end,), daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SHUTDOWN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        _warn(f"what OpenTelemetry's collector did not take within {SHUTDOWN_S:g} s is lost")


def _quietly(end: Callable[[], object]) -> None:
    try:
        end()
    except Exception as error:
        _warn(f"OpenTelemetry did not end in order: {error}", error=str(error))


def _warn(message: str, **fields: object) -> None:
    log_event(log, logging.WARNING, "telemetry_trouble", message, **fields)
