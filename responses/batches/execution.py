"""Answers one line as if it had come by HTTP: through the same services, with the key that created the batch."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from kernel.errors import ApiError, InvalidValue, ServerError
from kernel.ids import new_id
from kernel.validation import parse_json
from responses import chat
from responses.batches.queue import ClaimedLine, LineResult
from responses.batches.requests import EMBEDDINGS
from responses.engine.chat.converter import read_usage
from responses.engine.steps import RunEnded
from responses.engine.turn import Usage
from responses.lifecycle import create
from responses.models import Mode
from responses.passthrough import embeddings_moderations
from responses.runs.ledger import RequestInfo
from responses.schema import parse_create
from tenants import directory
from tenants.principal import Principal

logger = logging.getLogger(__name__)
_Body = dict[str, Any]
_MOST_PATIENCE = 600.0


async def answer(claimed: ClaimedLine, body: bytes) -> LineResult:
    """What an HTTP client would have got. Cancelled, it closes its upstream's connection first."""
    request = RequestInfo(request_id=new_id("req"), client_request_id="")
    try:
        principal = await directory.aprincipal_by_id(claimed.key_id)
        values = parse_json(body)
        _refuse(values)
        found = await _ASK[claimed.endpoint](principal, values, request)
    except ApiError as error:
        return _refusal(error, request)
    except Exception:
        logger.exception("a line of a batch broke", extra={"line": claimed.line_id})
        return _refusal(ServerError(), request)
    return LineResult(
        status_code=200,
        body=orjson.dumps(found).decode(),
        request_id=request.request_id,
        usage=_usage(found),
    )


def _refuse(values: _Body) -> None:
    """A line has nobody who could follow it."""
    for name in ("stream", "background"):
        if values.get(name):
            message = f"The parameter '{name}' is not supported in batches."
            raise InvalidValue(message, param=name)


def _refusal(error: ApiError, request: RequestInfo) -> LineResult:
    return LineResult(
        status_code=error.status,
        body=orjson.dumps(error.envelope()).decode(),
        request_id=request.request_id,
        retry_after=_seconds(error.headers.get("retry-after")),
    )


def _seconds(text: str | None) -> float | None:
    """What `retry-after` says; dates are not looked at."""
    try:
        return min(max(float(text), 0.0), _MOST_PATIENCE) if text else None
    except ValueError:
        return None


async def _response(principal: Principal, values: _Body, request: RequestInfo) -> _Body:
    run = await create.create_response(principal=principal, body=parse_create(values), mode=Mode.JSON, request=request)
    try:
        # None: the database was away for so long that the end of the run could not be stored.
        end: RunEnded | None = await run.finished()
    except asyncio.CancelledError:
        run.cancel()
        await run.finished()
        raise
    if end is None or end.ending.status == "cancelled":
        raise ServerError("The response was cancelled.")
    if end.ending.status == "failed":
        raise end.ending.failure.as_api_error() if end.ending.failure else ServerError()
    return end.response


async def _completion(principal: Principal, values: _Body, request: RequestInfo) -> _Body:
    return await chat.complete(principal=principal, body=chat.parse_chat(values), request=request)


async def _embeddings(principal: Principal, values: _Body, request: RequestInfo) -> _Body:
    return await embeddings_moderations.forward(
        principal=principal, passed=embeddings_moderations.parse_embedding(values), request=request
    )


_ASK: dict[str, Callable[[Principal, _Body, RequestInfo], Awaitable[_Body]]] = {
    "/v1/responses": _response,
    "/v1/chat/completions": _completion,
    EMBEDDINGS: _embeddings,
}


def _usage(body: _Body) -> Usage:
    """The tokens of an answer, in the words of either API."""
    said = body.get("usage")
    if not isinstance(said, dict):
        return Usage()
    for ours, theirs in (("input", "prompt"), ("output", "completion")):
        if f"{ours}_tokens" in said:
            said = {
                **said,
                f"{theirs}_tokens": said[f"{ours}_tokens"],
                f"{theirs}_tokens_details": said.get(f"{ours}_tokens_details"),
            }
    return read_usage(said)
