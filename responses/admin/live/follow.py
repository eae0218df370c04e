# mypy: allow-subclassing-any
"""WebSocket behind the page of a response in progress: sends its items as the event log grows.

Everything it sends is content: viewers who may not read the content of the team are rejected.
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import Any
from urllib.parse import parse_qs

from typing_extensions import override

from conversations.items import plain_text
from core.db.db_threads import in_db_thread
from engine.events.fold import read_frames
from responses.models import Response
from responses.runs import follow
from tenants import scope
from tenants.console.content_access import audit_team_reads
from tenants.console.socket import DONE, NOT_ALLOWED, AdminSocket

_NOT_FOUND = 4404
_MAX_RESULT_CHARACTERS = 64 * 1024
# Part of an item that a delta extends, by event type.
_DELTA_PARTS = {
    "output_text.delta": "text",
    "refusal.delta": "text",
    "reasoning_text.delta": "thought",
    "reasoning_summary_text.delta": "thought",
    "function_call_arguments.delta": "arguments",
    "mcp_call_arguments.delta": "arguments",
    "custom_tool_call_input.delta": "arguments",
    "code_interpreter_call_code.delta": "arguments",
}

FollowMessage = dict[str, Any]


class FollowSocket(AdminSocket):
    """Socket of one page. The response id is in the query string, as `response`."""

    @override
    async def watch(self) -> int:
        """Send the log of the run until it ends."""
        response_id = parse_qs(self.scope["query_string"].decode("latin-1")).get("response", [""])[0]
        response = await in_db_thread(lambda: self._find(response_id))
        if response is None:
            return _NOT_FOUND
        if not self.viewer.may_read(response.team_id):
            return NOT_ALLOWED
        await in_db_thread(lambda: audit_team_reads(self.viewer, [response.team_id]))
        # Closes the generator when the browser leaves, and with it the subscription to notifications.
        async with aclosing(follow.watch(response)) as pieces:
            async for data in pieces:
                if events := [*follow_messages(event for _, event in read_frames(data))]:
                    await self.send_message({"events": events, "has_ended": False})
        await self.send_message({"events": [], "has_ended": True})
        return DONE

    def _find(self, response_id: str) -> Response | None:
        """Return the response if it has an event log and the viewer can see it, else None."""
        if "\x00" in response_id:
            return None
        with scope.team(*self.viewer.visible_teams):
            found = Response.objects.filter(pk=response_id, stored=True).first()
            return found if found is not None and follow.has_event_log(found) else None


def follow_messages(events: Iterable[dict[str, Any]]) -> Iterator[FollowMessage]:
    """Convert events to messages for the page. Consecutive deltas of the same part are merged."""
    # A batch has many small deltas, and one message for consecutive deltas is far less work for the browser.
    for (_, part), messages in groupby(_messages(events), key=lambda message: (message["id"], message.get("part"))):
        if part is None:
            yield from messages
        else:
            first, *others = messages
            yield {**first, "text": "".join([first["text"], *(delta["text"] for delta in others)])}


def _messages(events: Iterable[dict[str, Any]]) -> Iterator[FollowMessage]:
    for event in events:
        kind = event.get("type", "").removeprefix("response.")
        if kind in _DELTA_PARTS:
            yield {"id": event["item_id"], "part": _DELTA_PARTS[kind], "text": event["delta"]}
        elif kind in {"output_item.added", "output_item.done"}:
            body = event["item"]
            names = (body.get("server_label"), body.get("namespace"), body.get("name"))
            name = ".".join(name for name in names if isinstance(name, str) and name)
            message = {"id": body["id"], "type": body["type"], "name": name}
            if kind == "output_item.done":
                # Send only the fields that no delta contained.
                message |= {"status": body.get("status") or "done", "result": _result(body)}
            yield message


def _result(body: dict[str, Any]) -> str:
    # Text and arguments were already sent as deltas. The output of a tool has no deltas.
    match body["type"]:
        case "mcp_call":
            return str(body.get("output") or "")[:_MAX_RESULT_CHARACTERS]
        case "message" | "reasoning" | "function_call" | "custom_tool_call":
            return ""
    return plain_text(body)[:_MAX_RESULT_CHARACTERS]
