"""Execution of one line: calls the same services as an HTTP request, with the API key that created the batch."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import orjson

from core.compute.pool import of_team
from core.errors import ApiError, InvalidValue, LimitReached, LimitsUnavailable, ServerError
from core.http.validation import parse_json
from core.ids import new_id
from core.origin import note_error, origin, use_own_caller
from engine.converter.base import read_usage
from engine.steps import RunEnded
from engine.turn import Usage
from gateway import chat
from gateway.batches.queue import ClaimedLine, LineResult
from gateway.batches.requests import EMBEDDINGS
from responses.lifecycle import blocked, create
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.passthrough import embeddings_moderations
from responses.runs.identity import RequestInfo
from responses.schema import parse_create
from tenants import directory
from tenants.principal import Principal

logger = logging.getLogger(__name__)
_Body = dict[str, Any]
# An upstream that asks for more than ten minutes gets another attempt after ten.
_MAX_RETRY_AFTER = 600.0


async def execute(claimed: ClaimedLine, body: bytes) -> LineResult:
    """Execute a line and return the response that an HTTP client would have received.

    When cancelled, it closes the connection to the upstream before it ends.
    """
    request = RequestInfo(request_id=new_id("req"), client_request_id="", batch=True)
    with use_own_caller(request.request_id, team_id=claimed.team_id, key_id=claimed.key_id):
        result = await _answer(claimed, body, request)
        return result if result.is_success else replace(result, refused=origin().caller)


async def _answer(claimed: ClaimedLine, body: bytes, request: RequestInfo) -> LineResult:
    try:
        # Looked up again for each line: a key may be revoked while its batch is running.
        principal = await directory.aprincipal_by_id(claimed.key_id)
        values = parse_json(body)
        _reject_unsupported(values)
        with of_team(principal.team_id):
            response = await _HANDLERS[claimed.endpoint](principal, values, request)
    except _RunFailed as failed:
        return _error_result(failed.error, request)
    except (LimitReached, LimitsUnavailable) as refused:
        # The line has not run: a batch waits for capacity instead of failing. Only the body names the end user.
        pause = blocked.pause_after(refused, end_user_is_known=False)
        return replace(_error_result(refused, request), pause=pause)
    except ApiError as error:
        return _error_result(error, request)
    except Exception:
        # A bug that one line triggers must not end the worker or the other lines of the batch.
        logger.exception("a batch line failed unexpectedly", extra={"line": claimed.id})
        return _error_result(ServerError(), request)
    return LineResult(
        status_code=HTTPStatus.OK,
        body=orjson.dumps(response).decode(),
        request_id=request.request_id,
        usage=_usage(response),
    )


class _RunFailed(Exception):
    """A run has failed, which is the result of its line."""

    def __init__(self, error: ApiError) -> None:
        self.error = error
        super().__init__(error.message)


def _reject_unsupported(values: _Body) -> None:
    # No client is connected that could read a stream, and a batch is in the background already.
    for name in ("stream", "background"):
        if values.get(name):
            raise InvalidValue(f"The parameter '{name}' is not supported in batches.", param=name)


def _error_result(error: ApiError, request: RequestInfo) -> LineResult:
    note_error(error.code, error.general or error.message)
    return LineResult(
        status_code=error.status,
        body=orjson.dumps(error.envelope()).decode(),
        request_id=request.request_id,
        retry_after=_seconds(error.headers.get("retry-after")),
    )


def _seconds(retry_after: str | None) -> float | None:
    try:
        return min(max(float(retry_after), 0.0), _MAX_RETRY_AFTER) if retry_after else None
    except ValueError:
        # The header may also be a date, which hardly any upstream uses. The normal pause applies then.
        return None


async def _response(principal: Principal, values: _Body, request: RequestInfo) -> _Body:
    new = NewRequest(principal=principal, body=parse_create(values), info=request, mode=Mode.JSON)
    run = await create.create_response(new)
    try:
        # None: the database was unavailable for so long that the end of the run could not be stored.
        end: RunEnded | None = await run.finished()
    except asyncio.CancelledError:
        run.cancel()
        await run.finished()
        raise
    if end is None or end.ending.status == "cancelled":
        raise ServerError("The response was cancelled.")
    if end.ending.status == "failed":
        raise _RunFailed(end.ending.failure.as_api_error() if end.ending.failure else ServerError())
    return end.response


async def _completion(principal: Principal, values: _Body, request: RequestInfo) -> _Body:
    return await chat.complete(principal=principal, body=chat.parse_chat(values), request=request)


async def _embeddings(principal: Principal, values: _Body, request: RequestInfo) -> _Body:
    return await embeddings_moderations.forward(
        principal=principal, passed=embeddings_moderations.parse_embedding(values), request=request
    )


_HANDLERS: dict[str, Callable[[Principal, _Body, RequestInfo], Awaitable[_Body]]] = {
    "/v1/responses": _response,
    "/v1/chat/completions": _completion,
    EMBEDDINGS: _embeddings,
}


def _usage(body: _Body) -> Usage:
    """Return the tokens that a response body reports."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    # Responses report input and output tokens, chat completions and embeddings prompt and completion tokens.
    for responses_name, chat_name in (("input", "prompt"), ("output", "completion")):
        if f"{responses_name}_tokens" in usage:
            usage = {
                **usage,
                f"{chat_name}_tokens": usage[f"{responses_name}_tokens"],
                f"{chat_name}_tokens_details": usage.get(f"{responses_name}_tokens_details"),
            }
    return read_usage(usage)
