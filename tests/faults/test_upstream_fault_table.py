"""Every fault of an upstream in every kind of call: the client's error, the stored rows, and the next call's success.

The web process and the worker give up on a silent upstream after 2 s, on any call after 4 s, and on answers of more
than 1 MiB.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

import httpx2
import orjson
import psutil
import pytest
from pytest_django import DjangoDbBlocker

from responses.models import RUNNING, Response
from tenants import scope, services
from tenants.models import UsageRecord
from tests.support import faulty_upstream as faults
from tests.support.api import Api, MakeCaller
from tests.support.background import ended
from tests.support.faulty_upstream import FaultyUpstream
from tests.support.machine_clock import machine_time
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import WorkerProcess, other_workers_suspended, running_worker

MODEL = "faulty/model"
# The same server with the Responses API.
RESPONSES_MODEL = "faulty/responses"
LIMITS = {
    "UPSTREAM_IDLE_TIMEOUT": "2",
    "UPSTREAM_ANSWER_TIMEOUT": "2",
    "UPSTREAM_TOTAL_TIMEOUT": "4",
    # A slow machine must read this much within the time limit of a call, for all kinds at once.
    "UPSTREAM_MAX_ANSWER_MIB": "1",
}
RECOVERY_SECONDS = 10.0
MIB = 2**20


@dataclass(frozen=True)
class Outcome:
    """Result for a client: the HTTP status, and the code and message of the error wherever it is. Code "": success."""

    status: int
    code: str = ""
    message: str = ""


SERVED = Outcome(200)
# The answer had begun, and its connection was closed before its end.
BROKEN_OFF = Outcome(200, "broken_off")

UNREACHABLE = "The model's server could not be reached."
SILENT = "The model's server did not answer in time."
STALLED = "The model's server stopped responding in the middle of its answer."
BROKE = "The connection to the model's server broke in the middle of its answer."
NOT_JSON = "The model's server sent something that is not JSON."
PAGE = "The model's server sent a page instead of an answer."
FAILED = "The model's server failed (HTTP 502)."
TOO_LARGE = "The model's server sent more than an answer may contain."
TOO_SLOW = "The model's server did not complete its answer in time."
REJECTED = "The request was rejected."
UNANSWERED = ("upstream_unreachable", "upstream_timeout")
OVER_TIME = {SILENT, STALLED, TOO_SLOW}

Call = Callable[[Api], Outcome]


def without_request(message: str) -> str:
    """Return the message without its model and the id of its request."""
    return re.sub(r" Model: '[^']+', request: req_\w+\.$", "", message)


def as_json(path: str, **body: object) -> Call:
    """Send a request that is answered with a document or a file."""

    def call(api: Api) -> Outcome:
        return _outcome(lambda: api.post(path, {"model": MODEL} | body))

    return call


def _outcome(send: Callable[[], httpx2.Response]) -> Outcome:
    try:
        answer = send()
    except httpx2.RemoteProtocolError:
        return BROKEN_OFF
    if answer.status_code == 200:
        return SERVED
    error = answer.json()["error"]
    # Anthropic's errors have no code.
    return Outcome(answer.status_code, error.get("code") or error["type"], without_request(error["message"]))


def transcription(api: Api) -> Outcome:
    """Send a form."""
    files, data = {"file": ("a.wav", b"RIFF", "audio/wav")}, {"model": MODEL}
    return _outcome(lambda: api.request("POST", "/audio/transcriptions", files=files, data=data))


def response_stream(model: str) -> Call:
    """Stream a response."""

    def call(api: Api) -> Outcome:
        answer = api.post("/responses", {"model": model, "input": "Hi", "stream": True})
        if answer.status_code != 200:
            return _outcome(lambda: answer)
        *_, last, _ = (line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: "))
        found = orjson.loads(last)["response"]["error"]
        return Outcome(200, found["code"], without_request(found["message"])) if found else SERVED

    return call


def as_stream(path: str, *, last: str, **body: object) -> Call:
    """Send a request that is answered with a stream, which ends with this data unless it fails."""

    def call(api: Api) -> Outcome:
        answer = api.post(path, {"model": MODEL, "stream": True, **body})
        if not answer.headers["content-type"].startswith("text/event-stream"):
            return _outcome(lambda: answer)
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
        if lines[-1] == last:
            return SERVED
        error = orjson.loads(lines[-1])["error"]
        return Outcome(200, error.get("code") or error["type"], without_request(error["message"]))

    return call


def background(api: Api) -> Outcome:
    """Create a background response and wait for its end."""
    found = ended(api, api.create(model=MODEL, input="Hi", background=True)["id"])["error"]
    return Outcome(200, found["code"], without_request(found["message"])) if found else SERVED


HI = [{"role": "user", "content": "Hi"}]
# Enough for answers that are too large.
MAX_TOKENS = 1_000_000
KINDS: dict[str, Call] = {
    "response": as_json("/responses", input="Hi"),
    "response stream": response_stream(MODEL),
    "background": background,
    "Responses upstream": as_json("/responses", input="Hi", model=RESPONSES_MODEL),
    "Responses upstream stream": response_stream(RESPONSES_MODEL),
    "message": as_json("/messages", messages=HI, max_tokens=MAX_TOKENS),
    "message stream": as_stream("/messages", last='{"type":"message_stop"}', messages=HI, max_tokens=MAX_TOKENS),
    "chat": as_json("/chat/completions", messages=HI),
    "chat stream": as_stream("/chat/completions", last="[DONE]", messages=HI),
    "completion": as_json("/completions", prompt="Hi"),
    "completion stream": as_stream("/completions", last="[DONE]", prompt="Hi"),
    "embeddings": as_json("/embeddings", input="Hi"),
    "moderations": as_json("/moderations", input="Hi"),
    "images": as_json("/images/generations", prompt="Hi"),
    "speech": as_json("/audio/speech", input="Hi", voice="alloy"),
    "transcription": transcription,
}
RUNS = {kind for kind in KINDS if kind.startswith(("response", "background", "Responses", "message"))}
# They send HTTP status 200 when the upstream has sent its own, or after two seconds.
STREAMED_RUNS = {"response stream", "Responses upstream stream", "message stream"}
EARLY_STATUS = {"background", *STREAMED_RUNS}
# The types of Anthropic's errors, which have no codes, and the statuses that differ.
ANTHROPIC_TYPES = {400: "invalid_request_error", 500: "api_error", 503: "overloaded_error"}
ANTHROPIC_STATUSES = {503: 529}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: the error for all kinds of calls, or for the differing ones. `is_early`: the upstream fails

    before it sends its status.
    """

    fault: faults.Fault | None
    is_early: bool = False
    message: str
    status: int = 500
    code: str = "server_error"
    differs: dict[str, Outcome] | None = None

    def expected(self, kind: str) -> Outcome:
        """Return the expected outcome of a kind of call."""
        if self.differs and kind in self.differs:
            return self.differs[kind]
        has_status = self.is_early and kind in STREAMED_RUNS
        if self.code and (kind == "message" or (kind == "message stream" and has_status)):
            status = ANTHROPIC_STATUSES.get(self.status, self.status)
            return Outcome(status, ANTHROPIC_TYPES[self.status], self.message)
        if kind == "message stream" and self.code:
            # Its status is that of the code.
            types = {"server_error": "api_error", **dict.fromkeys(UNANSWERED, "overloaded_error")}
            return Outcome(200, types.get(self.code, "invalid_request_error"), self.message)
        return Outcome(200 if kind in EARLY_STATUS and not has_status else self.status, self.code, self.message)


def in_stream(message: str) -> dict[str, Outcome]:
    """Return the errors of streams that begin with the upstream's."""
    return dict.fromkeys(["chat stream", "completion stream"], Outcome(200, "server_error", message))


# Speech is passed on as it arrives.
BEGUN = {"speech": BROKEN_OFF}
SERVED_SPEECH = {"speech": SERVED}
TABLE: dict[str, Row] = {
    "refuses connections": Row(is_early=True, fault=None, message=UNREACHABLE, status=503, code="upstream_unreachable"),
    "hangs before the head": Row(
        fault=faults.hang_before_the_head, message=SILENT, status=503, code="upstream_timeout"
    ),
    "hangs in the body": Row(fault=faults.hang_in_the_body, message=STALLED, differs={**BEGUN, **in_stream(STALLED)}),
    "cuts before the head": Row(
        is_early=True, fault=faults.cut_before_the_head, message=UNREACHABLE, status=503, code="upstream_unreachable"
    ),
    "cuts in the body": Row(fault=faults.cut_in_the_body, message=BROKE, differs={**BEGUN, **in_stream(BROKE)}),
    "sends a page": Row(
        fault=faults.page,
        message=NOT_JSON,
        differs={
            "chat stream": Outcome(200, "server_error", NOT_JSON),
            # Forwarded answers may have any other type.
            **dict.fromkeys(
                ["completion", "completion stream", "speech", "transcription"], Outcome(500, "server_error", PAGE)
            ),
        },
    ),
    "sends an error page": Row(is_early=True, fault=faults.error_page, message=FAILED),
    "sends an endless error page": Row(
        is_early=True, fault=faults.endless_error_page, message=REJECTED, status=400, code="invalid_prompt"
    ),
    "sends invalid JSON": Row(
        fault=faults.invalid_json, message=NOT_JSON, differs={**SERVED_SPEECH, **in_stream(NOT_JSON)}
    ),
    "sends invalid UTF-8": Row(
        fault=faults.invalid_utf8, message=NOT_JSON, differs={**SERVED_SPEECH, **in_stream(NOT_JSON)}
    ),
    "sends nested JSON": Row(
        fault=faults.nested_json, message=NOT_JSON, differs={**SERVED_SPEECH, **in_stream(NOT_JSON)}
    ),
    "sends no HTTP": Row(
        is_early=True, fault=faults.not_http, message=UNREACHABLE, status=503, code="upstream_unreachable"
    ),
    "sends an endless head": Row(
        is_early=True, fault=faults.endless_head, message=UNREACHABLE, status=503, code="upstream_unreachable"
    ),
    "sends an endless line": Row(
        fault=faults.endless_line, message=TOO_LARGE, differs={**BEGUN, **in_stream(TOO_LARGE)}
    ),
    "sends endless events": Row(
        fault=faults.endless_events, message=TOO_LARGE, differs={**BEGUN, **in_stream(TOO_LARGE)}
    ),
    "sends an endless chunk": Row(
        fault=faults.endless_chunk, message=TOO_LARGE, differs={**BEGUN, **in_stream(TOO_LARGE)}
    ),
    "sends an invalid chunk": Row(
        is_early=True, fault=faults.invalid_chunk, message=UNREACHABLE, status=503, code="upstream_unreachable"
    ),
    "sends compressed zeros": Row(
        fault=faults.compressed_zeros, message=TOO_LARGE, differs={**BEGUN, **in_stream(TOO_LARGE)}
    ),
    "sends the head byte by byte": Row(fault=faults.slow_head, message=SILENT, status=503, code="upstream_timeout"),
    "sends the body byte by byte": Row(
        fault=faults.slow_body, message=TOO_SLOW, differs={**BEGUN, **in_stream(TOO_SLOW)}
    ),
    # Documents are read whatever their type is.
    "sends the wrong media type": Row(
        fault=faults.wrong_type,
        message="",
        status=200,
        code="",
        differs={
            **dict.fromkeys(EARLY_STATUS, Outcome(200, "server_error", NOT_JSON)),
            "chat stream": Outcome(200, "server_error", NOT_JSON),
            "message stream": Outcome(200, "api_error", NOT_JSON),
        },
    ),
}


@pytest.fixture(scope="module")
def faulty(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[FaultyUpstream]:
    with FaultyUpstream().running() as server:
        with django_db_blocker.unblock():
            services.add_upstream(name="faulty", base_url=server.url, models=[MODEL])
            services.add_upstream(
                name="faulty responses", base_url=server.url, models=[RESPONSES_MODEL], wire_api="responses"
            )
        yield server


@pytest.fixture(scope="module")
def strict_web(faulty: FaultyUpstream) -> Iterator[WebProcess]:
    with running_web(**LIMITS) as process:
        yield process


@pytest.fixture(scope="module")
def strict_worker(faulty: FaultyUpstream) -> Iterator[WorkerProcess]:
    # Processes of other tests have other limits.
    with other_workers_suspended(), running_worker(concurrency=200, **LIMITS) as process:
        yield process


def call_all(apis: dict[str, Api]) -> dict[str, Outcome]:
    """Send a request of each kind at the same time."""
    with ThreadPoolExecutor(len(apis)) as pool:
        waiting = {kind: pool.submit(KINDS[kind], api) for kind, api in apis.items()}
        return {kind: call.result() for kind, call in waiting.items()}


def injected(upstream: FaultyUpstream, row: Row) -> AbstractContextManager[None]:
    """Return a context manager within which the upstream fails."""
    return upstream.refusing() if row.fault is None else upstream.failing(row.fault)


@pytest.mark.parametrize("fault", TABLE)
def test_every_fault_ends_with_its_error_and_the_next_call_succeeds(
    faulty: FaultyUpstream,
    strict_web: WebProcess,
    strict_worker: WorkerProcess,
    http: httpx2.Client,
    make_caller: MakeCaller,
    fault: str,
) -> None:
    row = TABLE[fault]
    apis = {kind: Api(http, url=strict_web.url, caller=make_caller()) for kind in KINDS}
    expected = {kind: row.expected(kind) for kind in KINDS}
    processes = [psutil.Process(strict_web.pid), psutil.Process(strict_worker.pid)]
    before = [process.memory_info().rss for process in processes]
    written = strict_web.written

    with injected(faulty, row):
        outcomes = call_all(apis)
    if row.message == TOO_LARGE:
        # On a slow machine, an answer reaches its time limit before its size limit.
        outcomes = {kind: expected[kind] if end.message in OVER_TIME else end for kind, end in outcomes.items()}
    assert outcomes == expected
    # Sixteen answers of at most 1 MiB, some of them twice while they are joined, and what the allocator keeps.
    grown = [process.memory_info().rss - rss for process, rss in zip(processes, before, strict=True)]
    assert max(grown) < 200 * MIB
    assert "Traceback" not in strict_web.output(since=written)

    over = machine_time()
    assert call_all(apis) == dict.fromkeys(KINDS, SERVED)
    assert machine_time() - over < RECOVERY_SECONDS
    for kind, api in apis.items():
        # Also of messages, whose errors have no code.
        assert_recorded(api, expected[kind], is_run=kind in RUNS, code=row.code or "server_error")


def assert_recorded(api: Api, expected: Outcome, *, is_run: bool, code: str) -> None:
    """Assert that usage records and, of runs, the stored responses show a call with an outcome and a served one."""
    failed = expected != SERVED

    def found() -> list[str]:
        with scope.team(api.caller.team.pk):
            outcomes = [one.outcome for one in UsageRecord.objects.order_by("occurred_at", "id")]
        return outcomes if len(outcomes) >= 2 else []

    # The record of a stream is written at its end, just after the client has read it. Retries have separate records.
    outcomes = eventually(found)
    assert outcomes[-1] == "stop"
    assert set(outcomes[:-1]) <= ({"failed", "interrupted"} if failed else {"stop"})
    if not is_run:
        return
    with scope.team(api.caller.team.pk):
        stored = list(Response.objects.order_by("created_at", "id"))
    assert not [one for one in stored if one.status in RUNNING]
    assert [one.status for one in stored] == ["failed" if failed else "completed", "completed"]
    stored_error = stored[0].error or {}
    if stored_error:
        stored_error = {**stored_error, "message": without_request(stored_error["message"])}
    assert stored_error == ({"code": code, "message": expected.message} if failed else {})
