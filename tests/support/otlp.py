"""A collector of OpenTelemetry that receives traces and metrics over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.aiohttp_server import serving
from tests.support.waiting import eventually


@dataclass(frozen=True, kw_only=True)
class CollectedSpan:
    """A span with its resource's kind of process."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    is_error: bool
    process: str


@dataclass
class Collector:
    """Traces and metrics that were received. `raw` are all bytes of them."""

    url: str = ""
    raw: bytes = b""
    spans: list[CollectedSpan] = field(default_factory=list)
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def wait_for(self, name: str, *, number: int = 1, trace_id: str | None = None) -> list[CollectedSpan]:
        """Wait for spans with this name, of one trace if that is given."""

        def found() -> list[CollectedSpan]:
            return [one for one in self.spans if one.name == name and trace_id in {None, one.trace_id}]

        eventually(lambda: len(found()) >= number)
        return found()

    def wait_for_id(self, span_id: str) -> CollectedSpan:
        """Wait for the span with this id."""
        (found,) = eventually(lambda: [one for one in self.spans if one.span_id == span_id])
        return found

    async def receive_traces(self, request: web.Request) -> web.Response:
        """Take a batch of spans."""
        body = await request.read()
        self.raw += body
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            process = _attributes(group.resource.attributes)["ors.process"]
            for scope in group.scope_spans:
                self.spans += [_span(one, process) for one in scope.spans]
        return web.Response(content_type="application/x-protobuf")

    async def receive_metrics(self, request: web.Request) -> web.Response:
        """Take a batch of metrics."""
        body = await request.read()
        self.raw += body
        for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    points = [_attributes(point.attributes) for point in metric.histogram.data_points]
                    self.metrics.setdefault(metric.name, []).extend(points)
        return web.Response(content_type="application/x-protobuf")


def _span(span: Any, process: str) -> CollectedSpan:
    return CollectedSpan(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        process=process,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/otlp/v1/traces", collector.receive_traces)
    app.router.add_post("/v1/otlp/v1/metrics", collector.receive_metrics)
    with serving(app) as root:
        collector.url = f"{root}/otlp"
        yield collector
