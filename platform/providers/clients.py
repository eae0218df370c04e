"""Requests to upstreams: HTTP clients per upstream and event loop, retries, and failures as API clients see them.

`HttpClient` posts JSON documents. The OpenAI SDK provides configuration, authentication and headers, and sends forms
and requests without a body. This module reads the SDK's undecoded responses, for which it uses a private header of the
SDK (`X-Stainless-Raw-Response`). The SDK's retries are off: they would call an unresponsive upstream three times, and
wait as long as an overloaded upstream asks.
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import aiohttp
import httpx2
import openai
import orjson
from django.conf import settings
from openai import AsyncAPIResponse, AsyncOpenAI, DefaultAioHttpClient
from openai._types import RequestOptions
from opentelemetry.trace import Span
from typing_extensions import override

from core.admission.overload import admission
from core.clock import now
from core.errors import Failure, ModelNotFound, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from core.json import large_json
from core.json.large_work import off_loop
from core.per_loop import PerLoop
from core.records import record
from core.telemetry import metrics, tracing
from engine import spans
from engine.turn import Attempt, Target, TurnRequest
from providers.dialects import is_refused_limit, learn_limit, without_refused_limit
from providers.failure_details import failed_answer, failed_request, log_failure, request_id
from providers.first_answer import FirstAnswer
from providers.http_client import (
    Answer,
    AnswerBounds,
    AnswerBroken,
    AnswerStalled,
    AnswerTooLarge,
    AnswerTooSlow,
    ErrorStatus,
    HttpClient,
    NoAnswer,
    RequestFailed,
    Unreachable,
    close_session,
    error_body,
    max_connections,
    request_failed,
    tls_context,
)
from providers.retries import Retries
from providers.targets.breaker.sharing import loop_breakers
from providers.targets.decision import FailedRequest, NextStep, next_step
from providers.targets.lease import LeasedAnswer, TargetLease
from providers.upstream_errors import MAX_MESSAGE, failure_from_status
from tenants.directory import Route, UpstreamEndpoint, target_loads

STALLED = Failure.of(UpstreamError("The model's server stopped responding in the middle of its answer."))
_TOO_MANY = int(httpx2.codes.TOO_MANY_REQUESTS)
# Statuses with a name, which metrics count separately: a server may send any number.
_STATUSES = frozenset(int(code) for code in httpx2.codes)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Multipart body: the fields, and each file as field, (name, content, media type).

    Entries of lists and objects are sent as `name[]` and `name[key]`.
    """

    fields: Mapping[str, Any]
    files: Sequence[tuple[str, tuple[str, bytes, str]]]


class UpstreamFailed(Exception):
    """The upstream answered with an error, with something unusable, or not at all."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamClients:
    """The SDK's client and the `HttpClient` of an upstream."""

    sdk: AsyncOpenAI
    http: HttpClient


_clients = PerLoop[dict[tuple[str, str, str], UpstreamClients]](dict)


def clients_for(upstream: UpstreamEndpoint) -> UpstreamClients:
    """Return the clients of an upstream in the current event loop. If its URL or key has changed, they are new."""
    clients = _clients()
    key = (upstream.id, upstream.base_url, upstream.api_key)
    found = clients.get(key)
    if found is None:
        found = clients[key] = _new_clients(upstream)
    return found


async def close_clients() -> None:
    """Close the clients of the current event loop, on shutdown."""
    for clients in (_clients.pop() or {}).values():
        await clients.sdk.close()
    await close_session()


def _new_clients(upstream: UpstreamEndpoint) -> UpstreamClients:
    idle, connect = settings.UPSTREAM_IDLE_TIMEOUT, settings.UPSTREAM_CONNECT_TIMEOUT
    timeout = httpx2.Timeout(idle, connect=connect, pool=connect)
    basic = {"Authorization": upstream.api_key} if upstream.uses_basic_auth else {}
    sdk = AsyncOpenAI(
        base_url=upstream.base_url,
        # The SDK requires a key; servers that need none ignore it.
        api_key=upstream.api_key or "none",
        default_headers=basic,
        max_retries=0,
        timeout=timeout,
        http_client=DefaultAioHttpClient(
            timeout=timeout,
            verify=tls_context(),
            event_hooks={"response": [_raise_error_status]},
            limits=httpx2.Limits(max_connections=max_connections(), max_keepalive_connections=max_connections()),
        ),
    )
    # Constant for the upstream, so they are built once. The SDK marks headers without a value with an object.
    headers = {name: value for name, value in sdk.default_headers.items() if isinstance(value, str)}
    headers |= sdk.auth_headers | basic | {"x-stainless-retry-count": "0", "x-stainless-read-timeout": str(idle)}
    return UpstreamClients(sdk=sdk, http=HttpClient(str(sdk.base_url), headers=headers))


async def _raise_error_status(response: httpx2.Response) -> None:
    # The SDK would read the whole body of an error, however large it is.
    if not response.is_success and not response.has_redirect_location:
        body = await error_body(response.aiter_bytes())
        raise ErrorStatus(response.status_code, headers=response.headers, body=body)


@record
class PostOptions:
    """Options for sending and retrying a request.

    `silent`: the upstream sends nothing until the whole answer is complete. `retry_body` builds a different body for
    retries, so that their answer is streamed. Without `may_repeat`, a request that the upstream may charge for is not
    retried. `patience`: see `Retries`. `first_answer`: its wait ends when the upstream answers. The upstream continues
    the trace of `span`, by default of the current span. `idempotency_key`: servers that know such keys act once for all
    requests with the same key.

    `on_answer` is called with the route when the upstream has begun to answer, before `first_answer` ends.
    `counted`: what estimates the input tokens for the limits of the target, a function or the request of a turn.

    `target` is set if the model has several targets. With `has_others`, further targets can be tried after this one, so
    that a request is repeated at most once.
    """

    silent: bool = False
    retry_body: Callable[[], dict[str, Any]] | None = None
    may_repeat: bool = True
    patience: float | None = None
    first_answer: FirstAnswer | None = None
    span: Span | None = None
    on_answer: Callable[[Route], None] | None = None
    counted: TurnRequest | Callable[[], int] | None = None
    target: Target | None = None
    has_others: bool = False
    idempotency_key: str = ""


_DEFAULT_OPTIONS = PostOptions()


def post(
    route: Route,
    path: str,
    body: dict[str, Any] | Form,
    *,
    attempts: list[Attempt],
    options: PostOptions = _DEFAULT_OPTIONS,
) -> AbstractAsyncContextManager[Answer]:
    """Send a request on entering and return the answer: its status is 200, its body is unread. Raises `UpstreamFailed`.

    Each HTTP request is added to `attempts` when it begins: the upstream may charge for any of them. On exit the
    connection is closed unless the body was read completely.
    """
    kind = _OpenAnswer if options.target is None else _CountedAnswer
    send = partial(_send, route, path, body, attempts=attempts, options=options)
    calls = OpenedCall(route=route, path=path, attempts=attempts, is_logged=options.target is None)
    if route.limits is None:
        return kind(calls, send)
    lease = TargetLease(route, route.limits, options.counted)
    return LeasedAnswer(kind(calls, partial(send, lease=lease)), lease, attempts)


class OpenedCall(NamedTuple):
    """The call of an open answer. `is_logged`: a failed answer is logged here, as no other target can continue it."""

    route: Route
    path: str
    attempts: list[Attempt]
    is_logged: bool


class _OpenAnswer(AbstractAsyncContextManager[Answer]):
    # Not a generator of `contextlib`, which takes 0.8 KB more per open stream.
    __slots__ = ("_answer", "_call", "_send", "_span")

    def __init__(self, call: OpenedCall, send: Callable[[], Awaitable[tuple[Answer, spans.span]]]) -> None:
        self._call = call
        self._send = send

    @override
    async def __aenter__(self) -> Answer:
        sending = self._send()
        # The request may contain images and the answer may take minutes, so the memory is freed here and in `_send`.
        del self._send
        self._answer, self._span = await sending
        return self._answer

    @override
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        route, path, attempts, is_logged = self._call
        if isinstance(error, UpstreamFailed):
            self._span.detail = note_failed_answer(route, path, error.failure, attempts, is_logged=is_logged)
        try:
            await self._answer.close()
        finally:
            self._span.__exit__(kind)
        if isinstance(error, UpstreamFailed):
            metrics.count_upstream_error(upstream=route.upstream.name, reason="broken_answer")
            # Some upstreams report an unknown model with status 200.
            raise UpstreamFailed(for_client(route, error.failure)) from error


class _CountedAnswer(_OpenAnswer):
    """An open answer of one of several targets. It counts for the choice among them."""

    __slots__ = ("_began",)

    @override
    async def __aenter__(self) -> Answer:
        self._began = target_loads.begin(self._call.route)
        try:
            return await super().__aenter__()
        except BaseException:
            target_loads.end(self._call.route, self._began, is_complete=False)
            raise

    @override
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        target_loads.end(self._call.route, self._began, is_complete=error is None)
        await super().__aexit__(kind, error, *rest)


async def _send(
    route: Route,
    path: str,
    body: dict[str, Any] | Form,
    *,
    attempts: list[Attempt],
    options: PostOptions,
    lease: TargetLease | None = None,
) -> tuple[Answer, spans.span]:
    """Return the answer and the span that measures it."""
    admission.started()
    headers, silent = _headers(options), options.silent
    clients, upstream = clients_for(route.upstream), route.upstream.name
    content = body if isinstance(body, Form) else await off_loop(partial(large_json.dumps, body))
    del body
    retries = Retries(route, patience=options.patience, first_answer=options.first_answer)
    is_renamed, last_failure = False, None
    await retries.wait_for_others()
    for number in itertools.count(1):
        on_usage = None
        if lease is not None:
            # With several targets, the queue of targets waits, as another one may have room earlier.
            refused = await lease.admit(retries, waits=options.target is None)
            if refused is not None:
                raise UpstreamFailed(last_failure or refused)
            on_usage = lease.settle
        attempt = Attempt(began=now(), target=options.target, on_usage=on_usage)
        attempts.append(attempt)
        name = spans.FIRST_ATTEMPT if len(attempts) == 1 else f"Request {len(attempts)}"
        sent = time.perf_counter()
        try:
            if isinstance(content, Form):
                answer: Answer = await _post_form(clients.sdk, path, content, headers=headers)
            else:
                answer = await clients.http.post(path, content, silent=silent, headers=headers)
            attempt.status, attempt.request_id = answer.status, _request_id(route.upstream, answer.headers)
            seconds = time.perf_counter() - sent
            metrics.count_upstream_request(upstream=upstream, code=str(answer.status), seconds=seconds, is_up=True)
            break
        except RequestFailed as error:
            _count_failed(error, upstream, seconds=time.perf_counter() - sent)
            attempt.ended, attempt.was_sent, attempt.timed_out = now(), error.was_sent, isinstance(error, NoAnswer)
            if isinstance(error, ErrorStatus):
                attempt.status, attempt.request_id = error.status, _request_id(route.upstream, error.headers)
            attempt.failure = failed_request(route.upstream, path, error)
            reason = _reason(error) if options.target is None else f"{upstream}: {_reason(error)}"
            spans.record(
                spans.Activity.ATTEMPT, name, began=attempt.began, state="failed", note=reason, detail=attempt.failure
            )
            if not is_renamed and (renamed := await _with_other_limit(route, content, error)) is not None:
                content, is_renamed = renamed, True
                continue
            failure = to_failure(error)
            may_repeat = options.may_repeat or not attempt.may_be_charged
            if options.target is not None:
                loop_breakers().failed(route, failure, status=attempt.status, has_timed_out=attempt.timed_out)
            if options.has_others:
                retries.observe(failure)
                failed = _failed_request(error, failure, is_repetition=number - is_renamed > 1, may_repeat=may_repeat)
                may_repeat = next_step(failed) is NextStep.SAME_TARGET
            elif may_repeat:
                may_repeat = _is_retryable(error, failure)
            may_repeat = may_repeat and _takes_requests(route, options)
            # Other requests may have failed during the pause.
            if not may_repeat or not await retries.pause(failure) or not _takes_requests(route, options):
                raise _given_up(route, failure, attempt) from error
            last_failure = for_client(route, failure)
        if options.retry_body is not None:
            content, silent = await off_loop(partial(large_json.dumps, await off_loop(options.retry_body))), False
    del content
    if options.on_answer is not None:
        options.on_answer(route)
    if options.first_answer is not None:
        options.first_answer.begin()
    measured = spans.span(spans.Activity.ATTEMPT, name, began=attempt.began)
    measured.note = f"HTTP {answer.status} after {(now() - attempt.began).total_seconds():.2f} s"
    if options.target is not None:
        measured.note = f"{upstream}: {measured.note}"
    return answer, measured


def _given_up(route: Route, failure: Failure, attempt: Attempt) -> UpstreamFailed:
    if attempt.target is None:
        # With several targets, the call is logged when none is left.
        log_failure(route, failure, attempt)
    return UpstreamFailed(for_client(route, failure))


def _takes_requests(route: Route, options: PostOptions) -> bool:
    return options.target is None or loop_breakers().is_closed(route)


async def _with_other_limit(route: Route, content: bytes | Form, error: RequestFailed) -> bytes | None:
    """Return the request with another name for its output limit, if the upstream does not know the one it was sent."""
    if (
        not isinstance(error, ErrorStatus)
        or isinstance(content, Form)
        or not is_refused_limit(error.status, error.body)
    ):
        return None
    body = without_refused_limit(await off_loop(partial(orjson.loads, content)), error.body)
    if body is None:
        return None
    learn_limit(route, body)
    return await off_loop(partial(large_json.dumps, body))


def _headers(options: PostOptions) -> Mapping[str, str]:
    headers = tracing.headers(options.span)
    return {**headers, "idempotency-key": options.idempotency_key} if options.idempotency_key else headers


def _request_id(upstream: UpstreamEndpoint, headers: Mapping[str, str]) -> str:
    """Return the upstream's id of a request, to be stored and shown in the console; "" if there is no valid id."""
    request_id = headers.get("x-request-id", "")
    # The id is stored even without `store`, so text from the input must not be accepted as an id.
    return upstream.redacted(request_id) if _REQUEST_ID.fullmatch(request_id) else ""


def _count_failed(error: RequestFailed, upstream: str, *, seconds: float) -> None:
    match error:
        case ErrorStatus(status=status):
            code = str(status) if status in _STATUSES else metrics.OTHER
            is_limit = status == httpx2.codes.TOO_MANY_REQUESTS
            reason = "rate_limited" if is_limit else f"http_{status // 100}xx"
            # The upstream works, but has refused this request.
            is_up = status < httpx2.codes.INTERNAL_SERVER_ERROR
        case Unreachable():
            code, reason, is_up = "unreachable", "unreachable", False
        case _:
            code, reason, is_up = "timeout", "timeout", False
    metrics.count_upstream_request(upstream=upstream, code=code, seconds=seconds, is_up=is_up)
    metrics.count_upstream_error(upstream=upstream, reason=reason)


def count_invalid_event(route: Route) -> None:
    """Count an event that was not JSON and was skipped."""
    metrics.count_upstream_error(upstream=route.upstream.name, reason="invalid_event")


def _reason(error: RequestFailed) -> str:
    match error:
        case ErrorStatus(status=status):
            return f"HTTP {status}"
        case Unreachable():
            return "not reached"
    return "no answer in time"


@asynccontextmanager
async def get(upstream: UpstreamEndpoint, path: str) -> AsyncIterator[Answer]:
    """Request an object and yield the answer: its status is 200, its body is unread. Raises `UpstreamFailed`."""
    options: RequestOptions = {"headers": {"X-Stainless-Raw-Response": "stream"}}
    began = time.monotonic()
    try:
        async with asyncio.timeout(settings.UPSTREAM_TOTAL_TIMEOUT):
            raw = await clients_for(upstream).sdk.get(path, cast_to=object, options=options)
    except ErrorStatus as error:
        raise UpstreamFailed(without_secrets(upstream, to_failure(error))) from error
    except SDK_ERRORS as error:
        raise UpstreamFailed(to_failure(from_sdk(error))) from error
    answer = SdkAnswer(raw, began=began)
    try:
        yield answer
    except UpstreamFailed as failed:
        raise UpstreamFailed(without_secrets(upstream, failed.failure)) from failed
    finally:
        await answer.close()


async def _post_form(client: AsyncOpenAI, path: str, form: Form, *, headers: Mapping[str, str]) -> Answer:
    options: RequestOptions = {
        "headers": {"X-Stainless-Raw-Response": "stream", "Content-Type": "multipart/form-data", **headers},
    }
    began = time.monotonic()
    try:
        async with asyncio.timeout(settings.UPSTREAM_TOTAL_TIMEOUT):
            raw = await client.post(path, body=form.fields, files=form.files, cast_to=object, options=options)
        return SdkAnswer(raw, began=began)
    except SDK_ERRORS as error:
        raise from_sdk(error) from error


class SdkAnswer:
    """Answer to a request of the SDK's client."""

    def __init__(self, raw: object, *, began: float) -> None:
        self._bounds = AnswerBounds(began=began)
        self._response = cast("AsyncAPIResponse[object]", raw).http_response
        self.status = self._response.status_code
        self.headers: Mapping[str, str] = self._response.headers
        self._pieces = self._response.aiter_bytes()

    async def read(self) -> bytes:
        """Return the bytes that have arrived; empty at the end."""
        try:
            # Decompression may hold back arrived bytes; empty pieces are not the end.
            async for piece in self._pieces:
                if piece:
                    self._bounds.check(piece)
                    return piece
        except httpx2.TimeoutException as error:
            raise AnswerStalled from error
        except httpx2.HTTPError as error:
            raise AnswerBroken from error
        return b""

    async def close(self) -> None:
        """Close the connection, unless the body was read completely."""
        await self._response.aclose()


# The SDK does not wrap transport errors that it does not know, such as an answer that is not HTTP.
# A `TimeoutError` is raised by the timeout of the whole request.
SDK_ERRORS = (openai.APIError, aiohttp.ClientError, TimeoutError)


def from_sdk(error: openai.APIError | aiohttp.ClientError | TimeoutError) -> RequestFailed:
    """Return the error of `HttpClient` that has the same meaning as an error of the SDK."""
    if not isinstance(error, openai.APIError):
        return request_failed(error)
    # The SDK's transport raises `ConnectTimeout` for almost every error of aiohttp, even if the connection broke after
    # the request had arrived. The SDK's own errors do not have an error of aiohttp as their cause.
    transport_error = error.__cause__
    cause = transport_error.__cause__ if transport_error else None
    return request_failed(cause if isinstance(cause, Exception) else None)


def _is_retryable(error: RequestFailed, failure: Failure) -> bool:
    # Timeouts are not retried, because the request has taken long already, and exhausted quotas are not retried either.
    if isinstance(error, ErrorStatus):
        advice = _advice(error, failure)
        is_temporary = error.status >= httpx2.codes.INTERNAL_SERVER_ERROR or failure.status == _TOO_MANY
        return is_temporary if advice is None else advice
    return isinstance(error, Unreachable)


def _advice(error: ErrorStatus, failure: Failure) -> bool | None:
    """Return whether the upstream says that a retry makes sense; None if it does not say."""
    # A header of OpenAI's servers.
    text = error.headers.get("x-should-retry") or failure.headers.get("x-should-retry")
    return {"true": True, "false": False}.get(text or "")


def _failed_request(error: RequestFailed, failure: Failure, *, is_repetition: bool, may_repeat: bool) -> FailedRequest:
    return FailedRequest(
        failure=failure,
        status=error.status if isinstance(error, ErrorStatus) else None,
        has_timed_out=isinstance(error, NoAnswer),
        is_repetition=is_repetition,
        should_retry=_advice(error, failure) if isinstance(error, ErrorStatus) else None,
        may_repeat=may_repeat,
    )


async def read_piece(answer: Answer) -> bytes:
    """Return the bytes of the body that have arrived; empty at the end.

    Raises `UpstreamFailed` if the answer breaks off, stalls, takes too long or is too large.
    """
    try:
        return await answer.read()
    except AnswerStalled as error:
        raise UpstreamFailed(STALLED) from error
    except AnswerTooSlow as error:
        raise UpstreamFailed(
            Failure.of(UpstreamError("The model's server did not complete its answer in time."))
        ) from error
    except AnswerTooLarge as error:
        raise UpstreamFailed(
            Failure.of(UpstreamError("The model's server sent more than an answer may contain."))
        ) from error
    except AnswerBroken as error:
        raise UpstreamFailed(
            Failure.of(UpstreamError("The connection to the model's server broke in the middle of its answer."))
        ) from error


async def read_bytes(answer: Answer) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of the body as they arrive. Raises `UpstreamFailed` as `read_piece` does."""
    while piece := await read_piece(answer):
        yield piece


def to_failure(error: RequestFailed) -> Failure:
    """Return the failure for a request that failed. It never reveals the upstream's URL."""
    match error:
        case ErrorStatus(status=status, body=body, headers=headers):
            return failure_from_status(status, body, headers=headers)
        case NoAnswer():
            return Failure.of(UpstreamTimeout())
    return Failure.of(UpstreamUnreachable())


def for_client(route: Route, failure: Failure) -> Failure:
    """Return the failure as clients see it and rows store it. Every failure of an upstream passes through here.

    The upstream's credentials are removed from its text, which is shortened. If the upstream does not know the model,
    the failure is worded as for a model that the platform itself does not know.
    """
    # Names the model by its public name: the upstream's message may contain another name.
    if failure.code == ModelNotFound.default_code:
        return replace(failure, message=ModelNotFound(route.model).message)
    if failure.code in _WITHOUT_ANSWER and failure.message == _WITHOUT_ANSWER[failure.code]:
        return replace(failure, message=_with_request(failure.message, route.model))
    return without_secrets(route.upstream, failure)


_WITHOUT_ANSWER = {kind().code: kind().message for kind in (UpstreamUnreachable, UpstreamTimeout)}


def _with_request(message: str, model: str) -> str:
    """Return the message with the model and the id of the request, by which operators find the cause."""
    named = request_id()
    return f"{message} Model: '{model}'{f', request: {named}' if named else ''}."


def note_failed_answer(
    route: Route, path: str, failure: Failure, attempts: list[Attempt], *, is_logged: bool
) -> Mapping[str, Any] | None:
    """Keep the details of an answer that has failed with its request, log it with `is_logged`, return the details."""
    if not attempts:
        return None
    last = attempts[-1]
    last.failure = failed_answer(route.upstream, path, failure, status=last.status)
    if is_logged:
        log_failure(route, failure, last)
    return last.failure


def without_secrets(upstream: UpstreamEndpoint, failure: Failure) -> Failure:
    """Return the failure without the upstream's credentials, which some upstreams repeat in their messages."""
    if not failure.general:
        return failure
    # Shortened afterwards, so that no part of a credential is left at the end.
    message = upstream.redacted(failure.message)
    return replace(failure, message=message[:MAX_MESSAGE])
