"""Traces and metrics for OpenTelemetry, as a collector receives them."""

from collections.abc import Iterator, Mapping

import httpx2
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the packages of requirements/telemetry.txt")

from tests.support.api import Api, Caller
from tests.support.background import ended
from tests.support.chunks import text
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import mcp_server
from tests.support.otlp import CollectedSpan, Collector, running_collector
from tests.support.upstream import Script, refusal, stream
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SERVER, CLIENT, CONSUMER = 2, 3, 5  # kinds of spans in OTLP
OPTIONS = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "500", "EGRESS_ALLOW": "127.0.0.1"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced_web(collector: Collector, upstream: object) -> Iterator[WebProcess]:
    with running_web(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **OPTIONS) as process:
        yield process


@pytest.fixture
def traced(traced_web: WebProcess, caller: Caller) -> Iterator[Api]:
    """The API, whose client sends the context of its trace."""
    with httpx2.Client(timeout=PATIENCE, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}) as http:
        yield Api(http, url=traced_web.url, caller=caller)


def continued(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the ids of trace and span in the headers of a request."""
    found = {name.lower(): value for name, value in headers.items()}
    _, trace_id, span_id, _ = found["traceparent"].split("-")
    return trace_id, span_id


def chat_of(collector: Collector, script: Script, number: int = 1) -> list[CollectedSpan]:
    return collector.wait_for(f"chat {script.model}", number=number, trace_id=TRACE)


def test_a_trace_continues_from_the_client_to_the_upstream(traced: Api, collector: Collector, script: Script) -> None:
    script.say("Hello")
    traced.create(model=script.model, input="Hi")
    (chat,) = chat_of(collector, script)
    request = collector.wait_for_id(chat.parent_id)
    assert (request.name, request.kind, request.parent_id) == ("POST /v1/responses", SERVER, PARENT)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/responses",
        "http.response.status_code": 200,
    }
    assert continued(script.wait_for_call().headers) == (TRACE, chat.span_id)
    assert (chat.kind, chat.is_error) == (CLIENT, False)
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.request.model"] == script.model
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert chat.attributes["gen_ai.usage.input_tokens"] == 7
    assert chat.attributes["gen_ai.usage.output_tokens"] == 3
    assert chat.attributes["gen_ai.usage.cache_read.input_tokens"] == 0
    assert chat.attributes["server.address"] == "127.0.0.1"


def test_a_tool_call_is_a_span_that_the_mcp_server_continues(traced: Api, collector: Collector, script: Script) -> None:
    with mcp_server() as server:
        script.call(box__add='{"a":2,"b":3}').say("Done.")
        traced.create(model=script.model, input="Hi", tools=[tool(server)])
        (called,) = collector.wait_for("execute_tool box__add", trace_id=TRACE)
        assert called.attributes["gen_ai.operation.name"] == "execute_tool"
        assert called.attributes["gen_ai.tool.name"] == "box__add"
        assert called.attributes["ors.tool.kind"] == "mcp"
        chats = chat_of(collector, script, 2)
        assert {one.parent_id for one in chats} == {called.parent_id}
        (meta,) = server.metas
        assert continued(meta) == (TRACE, called.span_id)


def test_a_worker_continues_the_trace_of_a_background_response(
    traced: Api, collector: Collector, script: Script, make_worker: MakeWorker
) -> None:
    make_worker(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **OPTIONS)
    script.say("Hello")
    ended(traced, traced.create(model=script.model, input="Hi", background=True)["id"])
    (chat,) = chat_of(collector, script)
    run = collector.wait_for_id(chat.parent_id)
    assert (chat.process, run.name, run.kind, run.process) == ("worker", "process response", CONSUMER, "worker")
    assert collector.wait_for_id(run.parent_id).name == "POST /v1/responses"


def test_spans_of_failures_have_a_type_and_no_span_has_content(
    traced: Api, collector: Collector, script: Script
) -> None:
    script.then(refusal(400, "The prompt 'secret of the error' is bad."))
    traced.post("/responses", {"model": script.model, "input": "secret of the input"})
    (chat,) = chat_of(collector, script)
    assert (chat.is_error, chat.attributes["error.type"]) == (True, "invalid_prompt")
    script.always(stream(*text("secret of the output")))
    traced.create(model=script.model, input="Hi", instructions="secret of the instructions")
    chat_of(collector, script, 2)
    assert b"secret of" not in collector.raw


def test_metrics_follow_the_opentelemetry_conventions(traced: Api, collector: Collector, script: Script) -> None:
    script.say("Hello")
    traced.create(model=script.model, input="Hi")
    usage = "gen_ai.client.token.usage"

    def points() -> list[dict[str, object]]:
        return [one for one in collector.metrics.get(usage, ()) if one["gen_ai.request.model"] == script.model]

    eventually(lambda: {one["gen_ai.token.type"] for one in points()} == {"input", "output"})
    assert {"gen_ai.client.operation.duration", "http.server.request.duration"} <= collector.metrics.keys()


def test_requests_without_a_trace_begin_one(
    traced_web: WebProcess, http: httpx2.Client, caller: Caller, collector: Collector, script: Script
) -> None:
    script.say("Hello")
    api = Api(http, url=traced_web.url, caller=caller)
    http.get(f"{traced_web.url}/livez")
    api.create(model=script.model, input="Hi")
    (chat,) = collector.wait_for(f"chat {script.model}")
    assert chat.trace_id not in {TRACE, ""}
    assert not [one for one in collector.spans if "livez" in one.name]


def test_nothing_is_added_to_requests_without_a_collector(api: Api, script: Script) -> None:
    script.say("Hello")
    api.create(model=script.model, input="Hi")
    assert "traceparent" not in {name.lower() for name in script.wait_for_call().headers}
