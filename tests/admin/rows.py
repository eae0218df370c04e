"""Rows for admin pages, as runs would create them, and signed-in browsers."""

import asyncio
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from conversations.models import Item, Placement, Section
from core.clock import now
from core.ids import new_id
from engine.events.compression import compress
from responses.models import EventBatch, Mode, Response, Status, ToolCall, Turn
from tenants import scope
from tenants.models import Membership, RejectedRequest, Role, StaffMember, StaffRole, Team, UsageRecord
from tests.support.api import Caller
from tests.support.site_client import SiteClient


def sign_in(
    roles: Mapping[str, Role] | None = None, *, superuser: bool = False, staff: StaffRole | None = None
) -> Client:
    """Return the browser of a new user. `roles` maps team ids to roles; `staff` is a role for all teams."""
    name = f"user-{uuid.uuid4().hex}"
    user = User.objects.create(username=name, is_staff=True, is_superuser=superuser)
    with scope.every_team():
        for team_id, role in (roles or {}).items():
            Membership.objects.create(team_id=team_id, user=user, role=role)
    if staff is not None:
        StaffMember.objects.create(user=user, role=staff)
    client = SiteClient()
    client.force_login(user)
    return client


def member(team: Team, role: Role = Role.DEVELOPER) -> Client:
    """Return the browser of a new member of a team."""
    return sign_in({team.pk: role})


def text(response: Any) -> str:
    """Return the HTML of a page."""
    return str(response.content.decode())


def streamed(response: Any) -> str:
    """Return the body of a file that is streamed."""

    async def read() -> bytes:
        return b"".join([part async for part in response])

    return asyncio.run(read()).decode()


def add_usage(caller: Caller, **columns: Any) -> UsageRecord:
    """Create a usage record of a caller."""
    defaults = {
        "endpoint": "responses", "object_id": "resp_none", "model": "m", "upstream_id": "upst_nowhere",
        "upstream_model": "m", "outcome": "stop",
    }  # fmt: skip
    with scope.team(caller.team.pk):
        return UsageRecord.objects.create(team=caller.team, api_key=caller.key, **{**defaults, **columns})


def add_rejections(caller: Caller, limit: str, count: int, **columns: Any) -> None:
    """Count requests of a caller that a limit has rejected in this hour."""
    hour = now().replace(minute=0, second=0, microsecond=0)
    with scope.team(caller.team.pk):
        RejectedRequest.objects.create(
            team=caller.team, hour=hour, api_key_id=caller.key.pk, limit=limit, count=count,
            **{"subject": "key", "endpoint": "responses", **columns},
        )  # fmt: skip


def add_response(caller: Caller, **columns: Any) -> Response:
    """Create a response of a caller, by default completed."""
    at: datetime = columns.pop("created_at", None) or now()
    status = columns.pop("status", Status.COMPLETED)
    has_ended = status not in {Status.QUEUED, Status.IN_PROGRESS}
    defaults = {
        "mode": Mode.JSON,
        "model": "m",
        "upstream_id": "upst_nowhere",
        "upstream_model": "m",
        "parameters": {"instructions": None},
        "request_id": new_id("req"),
        "ended_at": at + timedelta(seconds=1) if has_ended else None,
        "completed_at": at + timedelta(seconds=1) if status == Status.COMPLETED else None,
        "duration_ms": 1000 if has_ended else None,
        "turns": 1,
    }
    with scope.team(caller.team.pk):
        return Response.objects.create(
            team=caller.team, api_key=caller.key, created_at=at, status=status, **{**defaults, **columns}
        )


def add_items(response: Response, section: Section, *bodies: dict[str, Any], in_context: bool = True) -> None:
    """Append items to the input or output of a response."""
    with scope.team(response.team_id):
        first = Placement.objects.filter(owner=response.pk, section=section).count()
        for position, body in enumerate(bodies, first):
            whole = {"id": new_id("it"), **body}
            item = Item.objects.create(team_id=response.team_id, id=whole["id"], type=whole["type"], body=whole)
            Placement.objects.create(
                team_id=response.team_id,
                owner=response.pk,
                section=section,
                position=position,
                item=item,
                in_context=in_context,
            )


def user_message(text: str) -> dict[str, Any]:
    """Return an item: a message of the user."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant_message(text: str) -> dict[str, Any]:
    """Return an item: a message of the model."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def function_call_item(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    """Return an item: a function call of the model."""
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}


def add_call(response: Response, **columns: Any) -> None:
    """Create a tool call that completed after 250 ms."""
    at = now()
    defaults = {"turn": 0, "call_id": "call_1", "kind": "function", "name": "f", "arguments": "{}"}
    ending = {"status": "completed", "started_at": at, "ended_at": at + timedelta(milliseconds=250)}
    with scope.team(response.team_id):
        ToolCall.objects.create(team_id=response.team_id, response=response, **{**defaults, **ending, **columns})


def add_turns(response: Response, count: int) -> None:
    """Create turns of one second each."""
    at = now()
    with scope.team(response.team_id):
        for number in range(count):
            Turn.objects.create(
                team_id=response.team_id,
                response=response,
                number=number,
                state="stop",
                started_at=at,
                first_token_at=at + timedelta(milliseconds=120),
                ended_at=at + timedelta(seconds=1),
                finish_reason="stop",
                input_tokens=1234,
                output_tokens=56,
            )


def add_events(response: Response, count: int) -> None:
    """Create an event log with a single batch of events."""
    frames = "".join(
        f'event: response.output_text.delta\ndata: {{"type":"response.output_text.delta","sequence_number":{n}}}\n\n'
        for n in range(count)
    )
    with scope.team(response.team_id):
        EventBatch.objects.create(
            team_id=response.team_id,
            response=response,
            first_sequence=0,
            last_sequence=count - 1,
            compressed=compress(frames.encode()),
        )


def page_url(response: Response, *, tab: str = "") -> str:
    """Return the URL of the page of a response."""
    return f"/admin/responses/response/{response.pk}/change/{tab and f'?tab={tab}'}"


def fragment_url(response: Response, path: str) -> str:
    """Return the URL of a fragment that the page of a response loads."""
    return f"/admin/responses/response/{response.pk}/{path}"
