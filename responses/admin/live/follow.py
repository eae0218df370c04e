# mypy: allow-subclassing-any
"""The socket behind the page of a response that is not over yet: its items as they are made, from its log.

Content, all of it: whoever may not read what the team said gets nothing here.
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

from typing_extensions import override

from conversations.items import plain_text
from kernel.db_threads import in_db_thread
from responses.engine.events.fold import read_frames
from responses.models import Response
from responses.runs import follow
from tenants import scope
from tenants.console.content_access import audit_team_reads
from tenants.console.socket import DONE, NOT_ALLOWED, AdminSocket

_NOT_THERE = 4404
_MOST = 64 * 1024
# Which part of its item a delta belongs to.
_PARTS = {
    "output_text.delta": "text",
    "refusal.delta": "text",
    "reasoning_text.delta": "thought",
    "reasoning_summary_text.delta": "thought",
    "function_call_arguments.delta": "arguments",
    "mcp_call_arguments.delta": "arguments",
    "custom_tool_call_input.delta": "arguments",
    "code_interpreter_call_code.delta": "arguments",
}

Told = dict[str, Any]


class FollowSocket(AdminSocket):
    """One page of a response. Its id comes in the query, as `response`."""

    @override
    async def watch(self) -> int:
        """Tell the log of the run to its end."""
        asked = parse_qs(self.scope["query_string"].decode("latin-1")).get("response", [""])[0]
        response = await in_db_thread(lambda: self._find(asked))
        if response is None:
            return _NOT_THERE
        if not self.viewer.may_read(response.team_id):
            return NOT_ALLOWED
        await in_db_thread(lambda: audit_team_reads(self.viewer, [response.team_id]))
        async with aclosing(follow.watch(response)) as pieces:
            async for data in pieces:
                if events := [*told(event for _, event in read_frames(data))]:
                    await self.tell({"events": events, "has_ended": False})
        await self.tell({"events": [], "has_ended": True})
        return DONE

    def _find(self, response_id: str) -> Response | None:
        """The response with a log to follow; None for one that this viewer cannot see, as for an unknown id."""
        if "\x00" in response_id:
            return None
        with scope.team(*self.viewer.visible_teams):
            found = Response.objects.filter(pk=response_id, stored=True).first()
            return found if found is not None and follow.has_event_log(found) else None


def told(events: Iterable[dict[str, Any]]) -> Iterator[Told]:
    """What a page is told of these events; deltas that come close together are one."""
    growing: Told | None = None
    for event in events:
        kind = event.get("type", "").removeprefix("response.")
        part = _PARTS.get(kind)
        if part is not None:
            if growing is not None and (growing["id"], growing["part"]) == (event["item_id"], part):
                growing["words"] += event["delta"]
                continue
            if growing is not None:
                yield growing
            growing = {"id": event["item_id"], "part": part, "words": event["delta"]}
        elif kind in {"output_item.added", "output_item.done"}:
            if growing is not None:
                yield growing
            growing = None
            yield _item(event["item"], is_done=kind.endswith("done"))
    if growing is not None:
        yield growing


def _item(body: dict[str, Any], *, is_done: bool) -> Told:
    """An item that begins or has ended; `result` is what no delta has told of it."""
    said: Told = {"id": body["id"], "type": body["type"], "name": _name(body)}
    if is_done:
        said["status"] = body.get("status") or "done"
        said["result"] = _result(body)
    return said


def _name(body: dict[str, Any]) -> str:
    names = (body.get("server_label"), body.get("namespace"), body.get("name"))
    return ".".join(name for name in names if isinstance(name, str) and name)


def _result(body: dict[str, Any]) -> str:
    """What came back from a tool that we called; the words of everything else have been told."""
    match body["type"]:
        case "mcp_call":
            return str(body.get("output") or "")[:_MOST]
        case "message" | "reasoning" | "function_call" | "custom_tool_call":
            return ""
    return plain_text(body)[:_MOST]
