"""Endpoint `GET /v1/organization/audit_logs`: the audit log, with OpenAI's types of events where they exist.

Other lines keep the name that the console shows. `details` contains the stored line.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import Q
from django.http import QueryDict

from core.clock import unix
from core.errors import NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, keyset, page_argument
from core.http.query import QueryArgument, parameter, texts_argument, unix_time
from organization.api import objects
from organization.api.lookup import user_key
from tenants import scope
from tenants.audit import lines_of
from tenants.members import user_id
from tenants.models import AdminScope, ApiKey, AuditEvent
from tenants.views import ApiRequest, ApiView

_TYPES = {
    "admin_key.created": "api_key.created",
    "admin_key.revoked": "api_key.deleted",
    "api_key.created": "api_key.created",
    "api_key.disabled": "api_key.updated",
    "api_key.enabled": "api_key.updated",
    "api_key.revoked": "api_key.deleted",
    "api_key.rotated": "api_key.updated",
    "api_key.updated": "api_key.updated",
    "invite.accepted": "invite.accepted",
    "invite.deleted": "invite.deleted",
    "invite.sent": "invite.sent",
    "limits.updated": "rate_limit.updated",
    "membership.created": "user.added",
    "membership.deleted": "user.deleted",
    "membership.updated": "user.updated",
    "service_account.created": "service_account.created",
    "service_account.deleted": "service_account.deleted",
    "service_account.updated": "service_account.updated",
    "session.ended": "logout.succeeded",
    "session.refused": "login.failed",
    "session.started": "login.succeeded",
    "team.created": "project.created",
    "team.resumed": "project.updated",
    "team.suspended": "project.archived",
    "team.updated": "project.updated",
    "user.created": "user.added",
    "user.deactivated": "user.deleted",
    "user.deleted": "user.deleted",
    "user.updated": "user.updated",
}
# By type of event: the property with the changed fields, and OpenAI's name of each of our fields in it.
_FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "api_key.created": ("data", {"scopes": "scopes"}),
    "api_key.updated": ("changes_requested", {"scopes": "scopes"}),
    "project.created": ("data", {"name": "name"}),
    "project.updated": ("changes_requested", {"name": "title"}),
    "user.added": ("data", {"role": "role"}),
    "user.updated": ("changes_requested", {"role": "role"}),
    "service_account.created": ("data", {"role": "role"}),
    "service_account.updated": ("changes_requested", {"role": "role"}),
    "invite.sent": ("data", {"email": "email", "role": "role"}),
    "rate_limit.updated": (
        "changes_requested",
        {
            "requests_per_minute": "max_requests_per_1_minute",
            "tokens_per_minute": "max_tokens_per_1_minute",
            "requests_per_day": "max_requests_per_1_day",
        },
    ),
}
_WITHOUT_ID = {"login.succeeded", "login.failed", "logout.succeeded"}
_COMPARISONS = ("gt", "gte", "lt", "lte")


def _time_argument() -> QueryArgument:
    def read(query: QueryDict) -> dict[str, datetime]:
        found = {comparison: unix_time(query, f"effective_at[{comparison}]") for comparison in _COMPARISONS}
        return {comparison: at for comparison, at in found.items() if at is not None}

    schema = {"type": "object", "properties": {comparison: {"type": "integer"} for comparison in _COMPARISONS}}
    return QueryArgument("effective_at", [parameter("effective_at", schema, style="deepObject", explode=True)], read)


class AuditLogsView(ApiView, path="organization/audit_logs"):
    """The audit log of all projects and of the platform."""

    @Endpoint(
        AdminScope.AUDIT_LOGS_READ,
        "List audit logs",
        query=(
            page_argument(),
            _time_argument(),
            *map(texts_argument, ("project_ids", "event_types", "actor_ids", "actor_emails", "resource_ids")),
        ),
        note="newest first; types that OpenAI does not have keep their names here; `details` is an extension",
    )
    def get(
        self, request: ApiRequest, page: PageRequest, effective_at: dict[str, datetime], **filters: list[str]
    ) -> ListPage[objects.AuditLog]:
        with scope.every_team():
            rows = AuditEvent.objects.select_related("team").filter(_condition(effective_at, filters))
            found = keyset(rows, page=page, find=_find, unknown=_unknown, by=["occurred_at", "pk"])
            actors = _actors(found.rows)
            return found.as_list(present=lambda line: _public_line(line, actors))


def _condition(effective_at: Mapping[str, datetime], filters: Mapping[str, list[str]]) -> Q:
    condition = Q(**{f"occurred_at__{name}": at for name, at in effective_at.items()})
    if teams := filters["project_ids"]:
        condition &= lines_of(teams)
    if targets := filters["resource_ids"]:
        condition &= Q(target__in=targets)
    if types := filters["event_types"]:
        # A name of ours that OpenAI has another name for is never listed, so it selects nothing.
        own = {action for action, public in _TYPES.items() if public in types}
        condition &= Q(action__in=own | {event_type for event_type in types if event_type not in _TYPES})
    if filters["actor_ids"] or filters["actor_emails"]:
        condition &= Q(actor__in=_actor_names(filters["actor_ids"], filters["actor_emails"]))
    return condition


def _actor_names(ids: Iterable[str], emails: Iterable[str]) -> set[str]:
    """Return the names in the log of the actors with these addresses or ids of users, keys and service accounts."""
    ids = list(ids)
    people = User.objects.filter(Q(pk__in=[user_key(actor_id) for actor_id in ids]) | Q(email__in=list(emails)))
    keys = ApiKey.objects.filter(service_account__in=ids).values_list("pk", flat=True)
    return {
        *(f"user:{person.get_username()}" for person in people),
        *(f"key:{key_id}" for key_id in [*ids, *keys]),
    }


def _actors(lines: Iterable[AuditEvent]) -> dict[str, dict[str, Any]]:
    """Return the properties that describe the actors of lines, by the actor's name in the log."""
    names = {line.actor for line in lines}
    people = User.objects.filter(username__in=[name.removeprefix("user:") for name in names])
    keys = ApiKey.objects.filter(pk__in=[name.removeprefix("key:") for name in names])
    found = {
        f"user:{person.get_username()}": {"id": user_id(person), **({"email": person.email} if person.email else {})}
        for person in people
    }
    for key in keys.select_related("created_by"):
        owner: dict[str, Any] = {}
        if key.service_account_id:
            owner = {"type": "service_account", "service_account": {"id": key.service_account_id}}
        elif key.created_by:
            owner = {"type": "user", "user": {"id": user_id(key.created_by), "email": key.created_by.email}}
        found[f"key:{key.pk}"] = owner
    return found


def _public_actor(line: AuditEvent, actors: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    kind, _, name = line.actor.partition(":")
    known = actors.get(line.actor, {})
    if kind == "user":
        address = {"ip_address": line.address} if line.address else {}
        return {"type": "session", "session": {"user": known or {"id": name}, **address}}
    if kind == "key":
        return {"type": "api_key", "api_key": {"id": name, **known}}
    return None


def _public_line(line: AuditEvent, actors: Mapping[str, dict[str, Any]]) -> objects.AuditLog:
    kind = _TYPES.get(line.action, line.action)
    public: dict[str, Any] = {
        "id": _line_id(line),
        "effective_at": unix(line.occurred_at),
        "type": kind,
        "actor": _public_actor(line, actors),
        "project": {"id": line.team.pk, "name": line.team.name} if line.team else None,
        "details": {"action": line.action, "target": line.target, "before": line.before, "after": line.after},
    }
    if line.team_ids is not None:
        # A line about several projects has none in `project`.
        public["details"]["project_ids"] = line.team_ids
    if kind in _WITHOUT_ID:
        public[kind] = {}
    elif line.action in _TYPES:
        payload: dict[str, Any] = {"id": line.target}
        if kind in _FIELDS:
            name, fields = _FIELDS[kind]
            payload[name] = {theirs: line.after[ours] for ours, theirs in fields.items() if ours in line.after}
        public[kind] = payload
    # The name of the additional key is the type of the event.
    return cast("objects.AuditLog", public)


def _line_id(line: AuditEvent) -> str:
    return f"audit_log-{line.pk}"


def _find(line_id: str) -> AuditEvent | None:
    digits = line_id.removeprefix("audit_log-")
    if digits == line_id or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        return None
    return AuditEvent.objects.filter(pk=int(digits)).first()


def _unknown(line_id: str, *, param: str) -> NotFound:
    return NotFound(f"No such audit log: {line_id}", param=param)
