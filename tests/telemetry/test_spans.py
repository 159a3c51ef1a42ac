"""Spans of a generation and its stages, in one trace whoever began it."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Tracer

from generations import record
from gguf_worker.telemetry import begin_generation, stage_span
from gguf_worker.telemetry.spans import tracer_of
from gguf_worker.work import Work

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return tracer_of(provider)


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format(span.context.trace_id, "032x")


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_client_and_node_share_the_callers_trace(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    """caller > generation > the node's span of its session; by the work's traceparent alone."""
    generation = begin_generation(Work(traceparent=CALLER), model="SmolLM2", tracer=tracer)
    with stage_span(generation.work.again(), layers=(0, 8), node="node-a", tracer=tracer) as stage:
        stage.tell(rows=7, finish_reason="stop")
    generation.end(record())
    spans = by_name(exporter)
    assert {trace_of(span) for span in spans.values()} == {"0af7651916cd43dd8448eb211c80319c"}
    assert parent_of(spans["generation"]) == 0xB7AD6B7169203331
    context = spans["generation"].context
    assert context is not None
    assert parent_of(spans["stage 0:8"]) == parent_of(spans["stage layers 0:8 on node-a"]) == context.span_id
    assert spans["stage 0:8"].kind is SpanKind.SERVER
    attributes = dict(spans["stage 0:8"].attributes or {})
    assert attributes["gguf_worker.node"] == "node-a"
    assert attributes["gguf_worker.rows"] == 7
    assert attributes["gguf_worker.attempt"] == 1
    assert attributes["gguf_worker.work_id"] == generation.work.work_id


def test_generation_has_the_figures_of_its_record(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    begin_generation(Work(), model="SmolLM2", tracer=tracer, started_at=1000.0).end(record())
    spans = by_name(exporter)
    generation = dict(spans["generation"].attributes or {})
    assert generation["gen_ai.request.model"] == "SmolLM2"
    assert (generation["gen_ai.usage.input_tokens"], generation["gen_ai.usage.output_tokens"]) == (5, 3)
    assert generation["gen_ai.response.finish_reasons"] == ("stop",)
    assert spans["generation"].end_time == 1_000_500_000_000
    stage = dict(spans["stage layers 8:16"].attributes or {})
    assert (stage["gguf_worker.compute_us"], stage["gguf_worker.replays"]) == (9000, 1)


def test_failure_is_an_error_of_the_span(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    begin_generation(Work(), tracer=tracer).end(record(finish_reason="error", error="stage_lost"))
    (generation,) = (span for span in exporter.get_finished_spans() if span.name == "generation")
    assert not generation.status.is_ok
    assert (generation.attributes or {})["error.type"] == "stage_lost"


def test_block_that_raises_ends_its_span(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    def session() -> None:
        with stage_span(Work(), layers=(0, 1), node="node-a", tracer=tracer) as stage:
            stage.fail("timeout")
            raise KeyError

    with pytest.raises(KeyError):
        session()
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "timeout"


@pytest.mark.parametrize("traceparent", ["", "garbage", "00-0-0-00", CALLER.replace("-01", "-zz")])
def test_traceparent_that_is_none_begins_a_trace(
    tracer: Tracer, exporter: InMemorySpanExporter, traceparent: str
) -> None:
    begin_generation(Work(traceparent=traceparent), tracer=tracer).end()
    (span,) = exporter.get_finished_spans()
    assert span.parent is None


@pytest.mark.parametrize("traceparent", ["", CALLER])
def test_without_an_sdk_the_callers_trace_goes_through(traceparent: str) -> None:
    generation = begin_generation(Work(traceparent=traceparent))
    assert generation.work.traceparent == traceparent
    generation.end(record())
    with stage_span(generation.work, layers=(0, 8), node="node-a") as stage:
        stage.tell(rows=1)
        stage.fail("timeout")
