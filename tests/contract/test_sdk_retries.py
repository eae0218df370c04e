"""The retry loop of the OpenAI SDK against every error of this server: requests, pauses by the real clock, exception.

The server of these tests renders the errors as the platform does. Other tests check that the platform sends them.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import openai
import pytest
import uvicorn
from openai import OpenAI

from core import errors
from core.errors import ApiError, error_table, retry_headers
from core.http.asgi import App, Receive, Scope, Send, send_error, with_api_headers, with_request_id
from launcher.address import any_free_port
from tests.support.machine_clock import machine_time

Case = tuple[int, str | None]
# The errors that the SDK repeats; the others would get the same answer again.
REPEATED: set[Case] = {
    (408, "request_timeout"),
    (429, "rate_limit_exceeded"),
    (429, "slow_down"),
    (500, "server_error"),
    (503, "server_is_overloaded"),
    (503, "server_is_shutting_down"),
    (503, "server_error"),
    (503, "upstream_timeout"),
    (503, "upstream_unreachable"),
    (503, "limits_unavailable"),
    (503, "database_unavailable"),
    (507, "storage_full"),
}
RAISED = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    408: openai.APIStatusError,
    409: openai.ConflictError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
    507: openai.InternalServerError,
}
# Errors whose arguments differ from those of the others.
EXAMPLES: list[ApiError] = [
    errors.ApprovalAwaited("mcpr_1", response_id="resp_1", param="input"),
    errors.MissingParameter("input"),
    errors.UnknownParameter("inputs", suggestion="input"),
    errors.InvalidType("n", expected="an integer", got="a string"),
    errors.ModelNotFound("nothing"),
    errors.MutuallyExclusive("a", "b"),
    errors.PreviousResponseNotFound("resp_1"),
    errors.LimitReached("Too fast."),
    errors.InsufficientQuota("Used up."),
    errors.MethodNotAllowed("PUT", "/v1/models", allowed=["GET"]),
    *(errors.QuotaReached(limit, "Too many.") for limit in ("files", "stored_bytes", "open_batches")),
]
JITTER = 0.25
# Allows for a busy machine, as all errors are tried at the same time.
LATE = 3.0


def build_errors() -> dict[Case, ApiError]:
    """Return an error for each status and code of the table."""
    found = {(error.status, error.code): error for error in EXAMPLES}
    kinds = list(ApiError.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
        if not any(type(error) is kind for error in EXAMPLES):
            for code in (kind.default_code, *kind.codes):
                found.setdefault((kind.status, code), kind(code=code))
    return found


@dataclass(frozen=True)
class Outcome:
    """Outcome of one call of the SDK: the pauses between its requests, and the error that it raised.

    `delays` are the pauses in seconds of `machine_time`, for upper limits.
    """

    pauses: list[float]
    delays: list[float]
    raised: openai.APIStatusError


class ErrorServer:
    """Answers each request to `/{n}/…` with the error of this number, as the platform renders it."""

    def __init__(self) -> None:
        port = any_free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._errors: list[ApiError] = []
        self._times: list[list[tuple[float, float]]] = []
        self._lock = threading.Lock()
        app: App = with_request_id(with_api_headers(self._answer))
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def start(self) -> None:
        """Start the server and wait for it."""
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        self._thread.join()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        number = int(scope["path"].split("/")[1])
        self._times[number].append((time.monotonic(), machine_time()))
        await send_error(self._errors[number], send)

    def call(self, error: ApiError) -> Outcome:
        """Create a response with an SDK; every request gets this error."""
        with self._lock:
            number = len(self._errors)
            self._errors.append(error)
            self._times.append([])
        client = OpenAI(base_url=f"{self.url}/{number}/v1", api_key="sk-test")
        with client, pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(model="any", input="Hi")
        pauses, delays = (
            [later - earlier for earlier, later in pairwise(times)] for times in zip(*self._times[number], strict=True)
        )
        return Outcome(pauses=pauses, delays=delays, raised=caught.value)


@pytest.fixture(scope="module")
def server() -> Iterator[ErrorServer]:
    server = ErrorServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def outcomes(server: ErrorServer) -> Mapping[Case, Outcome]:
    """The outcome of each error of the table, in parallel because the SDK mostly waits."""
    every = build_errors()
    with ThreadPoolExecutor(len(every)) as threads:
        return dict(zip(every, threads.map(server.call, every.values()), strict=True))


CASES = [(status, code) for status, _, code, _ in error_table()]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_sdk_repeats_a_request_only_if_that_may_help(outcomes: Mapping[Case, Outcome], case: Case) -> None:
    pauses, delays = outcomes[case].pauses, outcomes[case].delays
    assert len(pauses) == (2 if case in REPEATED else 0)
    # Without a Retry-After header, the SDK doubles half a second and subtracts up to a quarter.
    for pause, delay, longest in zip(pauses, delays, (0.5, 1.0), strict=False):
        assert pause >= longest * (1 - JITTER)
        assert delay <= longest + LATE


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_sdk_raises_its_exception_with_the_code(outcomes: Mapping[Case, Outcome], case: Case) -> None:
    status, code = case
    error = outcomes[case].raised
    assert type(error) is RAISED.get(status, openai.APIStatusError)
    assert (error.status_code, error.code) == (status, code)
    assert error.request_id is not None
    assert error.request_id.startswith("req_")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [errors.RateLimited, errors.Overloaded])
def test_the_sdk_waits_exactly_as_long_as_requested(server: ErrorServer, kind: type[ApiError]) -> None:
    outcome = server.call(kind(headers=retry_headers(0.9)))
    assert len(outcome.pauses) == 2
    assert min(outcome.pauses) >= 0.9
    assert max(outcome.delays) <= 0.9 + LATE
    assert outcome.raised.response.headers["retry-after"] == "1"


def test_the_sdk_does_not_wait_for_hours(server: ErrorServer) -> None:
    assert server.call(errors.RateLimited(headers=retry_headers(3600))).pauses == []


def test_every_final_error_forbids_a_retry(server: ErrorServer) -> None:
    for status, code in ((409, None), (429, "insufficient_quota"), (429, "request_too_large_for_limit")):
        raised = server.call(build_errors()[status, code]).raised
        assert raised.response.headers["x-should-retry"] == "false"
        assert "retry-after" not in raised.response.headers
