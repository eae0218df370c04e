"""The metrics of the platform: all declarations, and functions that record an event in several metrics.

Label values are few and known: templates of paths, names of models and upstreams that operators have configured, and
names that this code defines. All other values are counted as `OTHER`. Children are looked up once, because `labels()`
takes ten times as long as a cached call.
"""

from functools import lru_cache

from django.conf import settings
from prometheus_client import Counter, Gauge, Histogram, Info, disable_created_metrics

from core import errors
from core.compute import pool

# The creation times of metrics add nothing to the start time of the process.
disable_created_metrics()  # type: ignore[no-untyped-call]  # in the library
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
# Bounds the names of models, upstreams and teams: each name adds some hundred lines to an answer of /metrics.
_MAX_MODELS, _MAX_TEAMS = 200, 1000
_MAX_CHILDREN = 4096

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_LONG_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)

# -- requests ----------------------------------------------------------------------------------------------------------

BUILD = Info("ors_build", "Version of the platform.")
HTTP_REQUESTS = Counter(
    "ors_http_requests", "Requests and WebSocket connections that have ended.", ["route", "method", "status_class"]
)
HTTP_DURATION = Histogram(
    "ors_http_request_duration_seconds",
    "Time from the start of a request to the end of its answer; the end of a stream is its last event.",
    ["route", "method"],
    buckets=_SECONDS,
)
CLIENT_DISCONNECTS = Counter(
    "ors_client_disconnects", "Requests whose client disconnected before the end of the answer.", ["route"]
)
REJECTED_REQUESTS = Counter("ors_rejected_requests", "Requests that were answered with an error, by code.", ["reason"])
LIMIT_REJECTIONS = Counter("ors_limit_rejections", "Requests that a limit or hard budget rejected.", ["limit"])
OPEN_STREAMS = Gauge("ors_open_streams", "Streams of events and WebSocket connections that are open.", ["kind"])
EVENT_LOOP_LAG = Histogram(
    "ors_event_loop_lag_seconds",
    "Delay of timers in the event loop.",
    buckets=(0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)

# -- responses ---------------------------------------------------------------------------------------------------------

RESPONSES = Counter("ors_responses", "Responses that have ended.", ["model", "mode", "status"])
RESPONSE_DURATION = Histogram(
    "ors_response_duration_seconds",
    "Time from the creation of a response to its end, including the time in the queue.",
    ["mode"],
    buckets=_LONG_SECONDS,
)
TIME_TO_FIRST_TOKEN = Histogram(
    "ors_time_to_first_token_seconds",
    "Time from the creation of a response to the first output of its model.",
    ["model"],
    buckets=_SECONDS,
)
OUTPUT_RATE = Histogram(
    "ors_output_tokens_per_second",
    "Output tokens of a streamed turn per second after the first one.",
    ["model"],
    buckets=(1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500),
)
ACTIVE_RUNS = Gauge("ors_active_runs", "Runs that the process executes.")
TURNS = Counter("ors_turns", "Turns of runs; a turn is one answer of a model.", ["model", "outcome"])
TOKENS = Counter(
    "ors_tokens",
    "Tokens by kind. The input contains the cached tokens and the cache writes, the output the reasoning.",
    ["model", "kind"],
)
COST = Counter("ors_cost_usd", "Cost of calls whose model has a price, in US dollars.", ["model"])
# Empty unless `METRICS_TEAM_LABEL` is set. Separate metrics, so that labels of teams and models are not combined.
TEAM_RESPONSES = Counter("ors_team_responses", "Responses that have ended, by team.", ["team", "status"])
TEAM_TOKENS = Counter("ors_team_tokens", "Tokens by kind and team.", ["team", "kind"])
TEAM_COST = Counter("ors_team_cost_usd", "Cost in US dollars, by team.", ["team"])
TOOL_CALLS = Counter(
    "ors_tool_calls", "Tool calls that have ended or were left to the client.", ["tool_type", "status"]
)
TOOL_DURATION = Histogram(
    "ors_tool_duration_seconds", "Duration of hosted tool calls.", ["tool_type"], buckets=_LONG_SECONDS
)
DEAD_RUNS = Counter("ors_dead_runs", "Runs that were ended because their process had died.")

# -- upstreams ---------------------------------------------------------------------------------------------------------

UPSTREAM_REQUESTS = Counter(
    "ors_upstream_requests", "HTTP requests to upstreams by status, including retries.", ["upstream", "code"]
)
UPSTREAM_ERRORS = Counter(
    "ors_upstream_errors", "Failed requests to upstreams, and interrupted answers.", ["upstream", "reason"]
)
UPSTREAM_DURATION = Histogram(
    "ors_upstream_response_seconds",
    "Time until an upstream begins its answer; for an answer that is not streamed, time until its end.",
    ["upstream"],
    buckets=_LONG_SECONDS,
)
UPSTREAM_UP = Gauge(
    "ors_upstream_up", "1 if the latest request to the upstream was answered, otherwise 0.", ["upstream"]
)
TARGET_OPEN = Gauge(
    "ors_target_open",
    "1 if the upstream gets no requests for the model, except probes, because others can serve it and it fails.",
    ["upstream", "model"],
)
TARGET_LIMITED = Counter(
    "ors_target_limited",
    "Requests that were not sent to an upstream at once because a limit of the model's target was reached.",
    ["upstream", "model", "limit"],
)

# -- storage -----------------------------------------------------------------------------------------------------------

COMMIT_SIZE = Histogram(
    "ors_group_commit_changes", "Changes of runs that one transaction commits.", buckets=(1, 2, 4, 8, 16, 32, 64)
)
COMMIT_DURATION = Histogram(
    "ors_group_commit_duration_seconds",
    "Duration of a group commit, including the wait for an unavailable database.",
    buckets=_SHORT_SECONDS,
)
DB_THREAD_WAIT = Histogram(
    "ors_db_thread_wait_seconds",
    "Time that calls from the event loop wait for a database thread.",
    buckets=_SHORT_SECONDS,
)
REDIS_ERRORS = Counter("ors_redis_errors", "Calls of Redis that failed.", ["use"])

# -- computations on untrusted input -----------------------------------------------------------------------------------

COMPUTATIONS = Counter(
    "ors_computations",
    "Grammars, skills and other inputs that were read in the compute pool, by outcome.",
    ["outcome"],
)
WAITING_COMPUTATIONS = Gauge("ors_waiting_computations", "Computations that wait for a process of the compute pool.")
WAITING_COMPUTATIONS.set_function(pool.waiting)

# -- periodic work -----------------------------------------------------------------------------------------------------

TASKS_SENT = Counter("ors_tasks_sent", "Periodic tasks that the scheduler has sent to the workers.", ["task"])
TASKS = Counter("ors_tasks", "Periodic tasks that have ended.", ["task", "outcome"])
TASK_DURATION = Histogram("ors_task_duration_seconds", "Duration of periodic tasks.", ["task"], buckets=_SECONDS)
TASK_SUCCEEDED = Gauge(
    "ors_task_last_success_timestamp_seconds", "When the task last succeeded, as Unix time.", ["task"]
)
DELIVERIES = Counter("ors_deliveries", "Attempts of webhook deliveries and mails.", ["channel", "outcome"])
DELIVERY_DURATION = Histogram(
    "ors_delivery_duration_seconds", "Duration of attempts of deliveries.", ["channel"], buckets=_SECONDS
)
ROWS_DROPPED = Counter("ors_retention_rows_dropped", "Rows that were deleted after their retention.", ["table"])
PARTITIONS_DROPPED = Counter(
    "ors_retention_partitions_dropped", "Monthly partitions that were dropped after their retention."
)

# Present from the start: an alert about the rate of a counter misses its first event if that event creates the counter.
for _kind in ("sse", "websocket"):
    OPEN_STREAMS.labels(_kind)
for _outcome in ("done", "too_costly", "refused", "repeated"):
    COMPUTATIONS.labels(_outcome)
for _use in ("heartbeats", "limits", "notifications", "targets"):
    REDIS_ERRORS.labels(_use)


# -- values of labels --------------------------------------------------------------------------------------------------

_models: set[str] = set()
_teams: set[str] = set()


def add_model(name: str) -> None:
    """Use the name of a configured model as a label value from now on."""
    if len(_models) < _MAX_MODELS:
        _models.add(name)


def model_label(name: str) -> str:
    """Return the name of a configured model, else `OTHER`: clients may ask for any name that a wildcard serves."""
    return name if name in _models else OTHER


def _team_label(team_id: str) -> str:
    if len(_teams) < _MAX_TEAMS:
        _teams.add(team_id)
    return team_id if team_id in _teams else OTHER


def _error_codes(kind: type[errors.ApiError] = errors.ApiError) -> set[str]:
    own = {kind.default_code, *kind.codes} - {None}
    return {str(code) for code in own}.union(*map(_error_codes, kind.__subclasses__()))


_CODES = frozenset(_error_codes())


# -- recording ---------------------------------------------------------------------------------------------------------


@lru_cache(_MAX_CHILDREN)
def _http_children(route: str, method: str, status_class: str) -> tuple[Counter, Histogram]:
    return HTTP_REQUESTS.labels(route, method, status_class), HTTP_DURATION.labels(route, method)


def count_request(*, route: str, method: str, status: int | None, seconds: float, is_complete: bool) -> None:
    """Count a request that has ended. `status` is None if its client disconnected before the answer."""
    status_class = "none" if status is None else f"{status // 100}xx"
    requests, durations = _http_children(route, method if method in _METHODS else OTHER, status_class)
    requests.inc()
    durations.observe(seconds)
    if not is_complete:
        CLIENT_DISCONNECTS.labels(route).inc()


def count_rejection(code: str | None, status: int) -> None:
    """Count a request that was answered with an error. Errors without one of our codes are labelled by their status."""
    REJECTED_REQUESTS.labels(code if code in _CODES else f"http_{status}").inc()


def count_computation(outcome: str) -> None:
    """Count a computation on untrusted input by its outcome."""
    COMPUTATIONS.labels(outcome).inc()


@lru_cache(_MAX_CHILDREN)
def _usage_children(model: str) -> tuple[dict[str, Counter], Counter]:
    kinds = ("input", "cached", "cache_write", "output", "reasoning")
    return {kind: TOKENS.labels(model, kind) for kind in kinds}, COST.labels(model)


def count_usage(
    *,
    model: str,
    team_id: str,
    input_tokens: int,
    cached_tokens: int,
    cache_write_tokens: int,
    output_tokens: int,
    reasoning_tokens: int,
    cost: float,
) -> None:
    """Count the tokens and the cost of calls of a model."""
    tokens, costs = _usage_children(model_label(model))
    tokens["input"].inc(input_tokens)
    tokens["output"].inc(output_tokens)
    for kind, number in (
        ("cached", cached_tokens),
        ("cache_write", cache_write_tokens),
        ("reasoning", reasoning_tokens),
    ):
        if number:
            tokens[kind].inc(number)
    if cost:
        costs.inc(cost)
    if settings.METRICS_TEAM_LABEL:
        team = _team_label(team_id)
        TEAM_TOKENS.labels(team, "input").inc(input_tokens)
        TEAM_TOKENS.labels(team, "output").inc(output_tokens)
        TEAM_COST.labels(team).inc(cost)


@lru_cache(_MAX_CHILDREN)
def _turn_children(model: str, outcome: str) -> tuple[Counter, Histogram]:
    return TURNS.labels(model, outcome), OUTPUT_RATE.labels(model)


def count_turn(*, model: str, outcome: str, output_tokens: int, output_seconds: float | None) -> None:
    """Count a turn. `output_seconds` is the time from its first token to its end if it was streamed."""
    turns, rates = _turn_children(model_label(model), outcome)
    turns.inc()
    # One read of the network may bring all of a short answer.
    if output_seconds and output_seconds > 0.05 and output_tokens > 1:
        rates.observe(output_tokens / output_seconds)


@lru_cache(_MAX_CHILDREN)
def _response_children(model: str, mode: str, status: str) -> tuple[Counter, Histogram, Histogram]:
    responses = RESPONSES.labels(model, mode, status)
    return responses, RESPONSE_DURATION.labels(mode), TIME_TO_FIRST_TOKEN.labels(model)


def count_response(
    *, model: str, mode: str, status: str, team_id: str, seconds: float, first_token_seconds: float | None
) -> None:
    """Count a response that has ended."""
    responses, durations, first_tokens = _response_children(model_label(model), mode, status)
    responses.inc()
    if settings.METRICS_TEAM_LABEL:
        TEAM_RESPONSES.labels(_team_label(team_id), status).inc()
    durations.observe(seconds)
    if first_token_seconds is not None:
        first_tokens.observe(first_token_seconds)


@lru_cache(_MAX_CHILDREN)
def _tool_children(tool_type: str, status: str) -> tuple[Counter, Histogram]:
    return TOOL_CALLS.labels(tool_type, status), TOOL_DURATION.labels(tool_type)


def count_tool_call(*, tool_type: str, status: str, seconds: float | None = None) -> None:
    """Count a tool call, with its duration if this process executed it."""
    calls, durations = _tool_children(tool_type, status)
    calls.inc()
    if seconds is not None:
        durations.observe(seconds)


@lru_cache(_MAX_CHILDREN)
def _upstream_children(upstream: str, code: str) -> tuple[Counter, Histogram, Gauge]:
    return UPSTREAM_REQUESTS.labels(upstream, code), UPSTREAM_DURATION.labels(upstream), UPSTREAM_UP.labels(upstream)


def count_upstream_request(*, upstream: str, code: str, seconds: float, is_up: bool) -> None:
    """Count a request to an upstream. `code` is the status of its answer, or the reason why there is none."""
    requests, durations, state = _upstream_children(upstream, code)
    requests.inc()
    durations.observe(seconds)
    state.set(1 if is_up else 0)


def count_target_limit(*, upstream: str, model: str, limit: str) -> None:
    """Count a request that a limit of a target has refused."""
    TARGET_LIMITED.labels(upstream, model_label(model), limit).inc()


def count_upstream_error(*, upstream: str, reason: str) -> None:
    """Count a request to an upstream that failed, or an answer that broke off."""
    UPSTREAM_ERRORS.labels(upstream, reason).inc()
