"""Traces and metrics for OpenTelemetry: off, unless `OTEL_EXPORTER_OTLP_ENDPOINT` is set and the SDK is installed.

W3C's trace context is taken from clients and passed on to workers, MCP servers and upstreams. Spans have names, models,
numbers and errors by type, but never content. The provider is not registered globally. Therefore libraries with spans
of their own, such as the MCP client, record nothing and only pass on the current span.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from django.conf import settings
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from core.process_name import process_name
from core.telemetry import telemetry_names as names

logger = logging.getLogger(__name__)
_EXPORT_SECONDS = 5
_SERVER_ERRORS = 500
# The boundaries that the conventions recommend.
_SECONDS = [0.01 * 2**power for power in range(14)]
_TOKENS = [4.0**power for power in range(14)]
_propagator = TraceContextTextMapPropagator()


class _Telemetry:
    """The tracer and the instruments of this process; none until `start`."""

    tracer: Tracer | None = None
    tokens: Histogram
    durations: Histogram
    requests: Histogram


def start(kind: str) -> None:
    """Start to export if this is configured; `kind` is the kind of the process. Starts threads: call after a fork."""
    if not (endpoint := settings.OTEL_EXPORTER_OTLP_ENDPOINT.rstrip("/")):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but its packages are not installed, so nothing is exported:"
            " run `python3 manage.py install --telemetry`"
        )
        return

    resource = Resource.create(
        {
            names.SERVICE_NAME: settings.OTEL_SERVICE_NAME,
            names.SERVICE_VERSION: settings.VERSION,
            names.SERVICE_INSTANCE: process_name(),
            names.PROCESS: kind,
        }
    )
    spans = BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_EXPORT_SECONDS))
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(spans)
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_EXPORT_SECONDS)
    )
    meter = MeterProvider(resource=resource, metric_readers=[reader]).get_meter("responses-platform")
    _Telemetry.tokens = meter.create_histogram(
        names.TOKEN_USAGE, unit="{token}", explicit_bucket_boundaries_advisory=_TOKENS
    )
    _Telemetry.durations = meter.create_histogram(
        names.OPERATION_DURATION, unit="s", explicit_bucket_boundaries_advisory=_SECONDS
    )
    _Telemetry.requests = meter.create_histogram(
        names.REQUEST_DURATION, unit="s", explicit_bucket_boundaries_advisory=_SECONDS
    )
    _Telemetry.tracer = tracers.get_tracer("responses-platform")


def is_enabled() -> bool:
    """Return true if this process exports."""
    return _Telemetry.tracer is not None


# -- context -----------------------------------------------------------------------------------------------------------


def headers(span: Span | None = None) -> dict[str, str]:
    """Return the headers that continue a trace elsewhere: the trace of `span`, or else the current one."""
    carrier: dict[str, str] = {}
    if is_enabled():
        _propagator.inject(carrier, None if span is None else trace.set_span_in_context(span))
    return carrier


def log_ids() -> dict[str, str]:
    """Return the ids of the current span for a line of the log."""
    if not is_enabled():
        return {}
    current = trace.get_current_span().get_span_context()
    if not current.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(current.trace_id), "span_id": trace.format_span_id(current.span_id)}


def parent_of(carrier: Mapping[str, str]) -> Context:
    """Return the context that these headers continue; an empty one without valid headers."""
    return _propagator.extract(carrier, Context())


@contextmanager
def _current(span: Span) -> Iterator[None]:
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        context.detach(token)
        span.end()


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute(names.ERROR_TYPE, error_type)
    # Without a description, which could have content.
    span.set_status(StatusCode.ERROR)


# -- spans -------------------------------------------------------------------------------------------------------------


@contextmanager
def request(*, method: str, route: str, carrier: Mapping[str, str], status: Callable[[], int | None]) -> Iterator[None]:
    """Record the block as a request of a client. `status` returns the status of the answer at its end."""
    tracer = _Telemetry.tracer
    if tracer is None:
        yield
        return
    attributes: dict[str, Any] = {names.HTTP_METHOD: method, names.HTTP_ROUTE: route}
    began = time.perf_counter()
    span = tracer.start_span(
        f"{method} {route}", context=parent_of(carrier), kind=SpanKind.SERVER, attributes=attributes
    )
    with _current(span):
        try:
            yield
        finally:
            if (answered := status()) is not None:
                attributes[names.HTTP_STATUS] = answered
                span.set_attribute(names.HTTP_STATUS, answered)
                if answered >= _SERVER_ERRORS:
                    _fail(span, str(answered))
            _Telemetry.requests.record(time.perf_counter() - began, attributes)


@contextmanager
def continued(carrier: Mapping[str, str], name: str) -> Iterator[None]:
    """Record the block, in which a worker continues the work of a request, as part of the request's trace."""
    tracer = _Telemetry.tracer
    if tracer is None:
        yield
        return
    with _current(tracer.start_span(name, context=parent_of(carrier), kind=SpanKind.CONSUMER)):
        yield


def _ignore(_: str) -> None:
    return


def tool_call(kind: str, name: str, call_id: str) -> AbstractContextManager[Callable[[str], None]]:
    """Record the block as the execution of a tool. Yields a function that records an error by its type."""
    return nullcontext(_ignore) if _Telemetry.tracer is None else _tool_call(_Telemetry.tracer, kind, name, call_id)


@contextmanager
def _tool_call(tracer: Tracer, kind: str, name: str, call_id: str) -> Iterator[Callable[[str], None]]:
    attributes = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: name,
        names.TOOL_TYPE: names.EXTENSION,
        names.TOOL_CALL_ID: call_id,
        names.TOOL_KIND: kind,
    }
    span = tracer.start_span(f"{names.EXECUTE_TOOL} {name}", attributes=attributes)
    with _current(span):
        yield lambda error_type: _fail(span, error_type)


class ChatSpan:
    """A call of a model, from its first request to the end of its answer. Its requests continue `span`."""

    __slots__ = ("_attributes", "_began", "span")

    def __init__(self, tracer: Tracer, attributes: dict[str, Any]) -> None:
        self._attributes, self._began = attributes, time.perf_counter()
        name = f"{names.CHAT} {attributes[names.REQUEST_MODEL]}"
        self.span = tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def end(self, attributes: Mapping[str, Any], *, error_type: str | None) -> None:
        """End the span with attributes of the answer, and record its duration and tokens."""
        if not self.span.is_recording():
            return
        self.span.set_attributes(attributes)
        if error_type is not None:
            _fail(self.span, error_type)
        self.span.end()
        measured = {**self._attributes, **({} if error_type is None else {names.ERROR_TYPE: error_type})}
        _Telemetry.durations.record(time.perf_counter() - self._began, measured)
        for name, kind in ((names.INPUT_TOKENS, names.INPUT), (names.OUTPUT_TOKENS, names.OUTPUT)):
            if name in attributes:
                _Telemetry.tokens.record(attributes[name], {**self._attributes, names.TOKEN_TYPE: kind})


def chat(*, model: str, address: str) -> ChatSpan | None:
    """Begin a call of a model below the current span; None if nothing is recorded."""
    if _Telemetry.tracer is None:
        return None
    attributes = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: names.OPENAI,
        names.REQUEST_MODEL: model,
        names.SERVER_ADDRESS: address,
    }
    return ChatSpan(_Telemetry.tracer, attributes)
