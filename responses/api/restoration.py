"""Answers of requests with an idempotency key whose process has died: from the response that the request has left."""

import asyncio
from functools import partial

import orjson
from django.conf import settings

from core.db.db_threads import in_db_thread
from core.errors import ServerError
from core.http.asgi import Send, send_error
from core.http.rendering import as_api_error
from core.http.sending import JsonAnswer, send_events, send_json
from idempotency.execution import Execute
from idempotency.http import Restoration
from idempotency.store import Claim
from responses.models import RUNNING, Response, Status, ToolCall
from responses.runs import follow, selectors
from tenants import scope
from tenants.principal import Principal

_ENDPOINT = "responses"
_PAUSE_SECONDS = 0.25
# The sweeper ends the run of a dead process once its lease has expired.
_LEASES = 4
_LOST = "The server stopped before it had answered the request."


async def restore(principal: Principal, claimed: Claim, *, is_stream: bool) -> Execute | None:
    """Return how to answer a request from its response, or None if the request has to be executed again.

    It is executed again if it has left no response that can be returned, and has made no hosted call.
    """
    response = await _ended(claimed)
    if response is None:
        return None
    # Other endpoints that create responses, such as Messages, answer in another format.
    is_readable = response.stored and response.endpoint == _ENDPOINT
    has_answer = is_readable and response.status not in {Status.FAILED, Status.CANCELLED}
    if not has_answer and not await had_effects(claimed):
        return None
    if not is_readable:
        return partial(send_error, ServerError(_LOST))
    if is_stream:
        return partial(_stream, principal, response)
    return partial(_send_body, response)


async def had_effects(claimed: Claim) -> bool:
    """Return whether the response of a request has dispatched a hosted call."""

    def has_hosted_call() -> bool:
        with scope.team(claimed.team_id):
            response = _find(claimed)
            calls = ToolCall.objects.exclude(kind="function")
            return response is not None and (response.tool_calls > 0 or calls.filter(response=response.pk).exists())

    return await in_db_thread(has_hosted_call)


RESTORATION = Restoration(restore, had_effects)


async def _ended(claimed: Claim) -> Response | None:
    """Return the response of a request. Waits for the end of a run that belongs to the dead process."""

    def find() -> Response | None:
        with scope.team(claimed.team_id):
            return _find(claimed)

    response = await in_db_thread(find)
    for _ in range(int(_LEASES * settings.LEASE_SECONDS / _PAUSE_SECONDS)):
        if response is None or response.status not in RUNNING or response.background or response.handed_over_at:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
        response = await in_db_thread(find)
    return response


def _find(claimed: Claim) -> Response | None:
    # The range of times has an index, the request id has none.
    found = Response.objects.filter(team_id=claimed.team_id, created_at__gte=claimed.created_at)
    return found.filter(request_id=claimed.request_id).first()


async def _stream(principal: Principal, response: Response, send: Send) -> None:
    events = await follow.follow(principal=principal, response_id=response.pk, after=-1, obfuscation=True)

    def last_event(error: Exception) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": as_api_error(error).detail()})

    await send_events(events, send, headers=[], last_event=last_event, close=lambda: None)


async def _send_body(response: Response, send: Send) -> None:
    def read() -> JsonAnswer:
        with scope.team(response.team_id):
            output = selectors.outputs([response]).get(response.pk, [])
        return JsonAnswer(selectors.public_body(response, output))

    if response.status in {Status.FAILED, Status.CANCELLED}:
        await send_error(ServerError((response.error or {}).get("message") or _LOST), send)
        return
    await send_json(await in_db_thread(read), send)
