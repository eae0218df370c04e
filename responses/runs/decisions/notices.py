"""Webhook events and mails about decisions for which runs wait."""

from typing import Any

from django.conf import settings

from core.clock import shared_now
from core.work.leases import lock
from responses.models import IS_AWAITED, Decision, DecisionKind
from responses.runs.decisions.listing import subject_of
from responses.webhooks.announcements import announce_with_mail
from responses.webhooks.outbox import announce
from tenants import scope
from tenants.models import NotificationKind

_BATCH_SIZE = 100
# A literal, because `reverse` would import all pages, which takes a worker seconds.
_PAGE = "/admin/approvals/"
# The subject of the mail about a decision of each kind, and what is needed.
_WORDS = {
    DecisionKind.APPROVAL.value: ("Approval needed", "waits for the approval of a call."),
    DecisionKind.UNKNOWN_OUTCOME.value: (
        "Unknown outcome",
        "was interrupted during a call, which may have taken effect. Find out if it did, and decide how to continue.",
    ),
    DecisionKind.QUESTION.value: ("Question", "waits for the answer to a question of a tool."),
}


def page_of(decision_id: str) -> str:
    """Return the path of the console page of a decision."""
    return f"{_PAGE}{decision_id}/"


def announce_requests(*, response_id: str | None = None) -> int:
    """Announce open decisions that were not announced, by default of all responses. Return their number.

    Each decision is announced once, however many processes call this function.
    """
    with scope.every_team():
        rows = Decision.objects.filter(IS_AWAITED, announced_at__isnull=True)
        if response_id is not None:
            rows = rows.filter(response_id=response_id)
        found = list(lock(rows, of=("self",)).select_related("team").order_by("asked_at")[:_BATCH_SIZE])
        for row in found:
            _announce_request(row)
        Decision.objects.filter(pk__in=[row.pk for row in found]).update(announced_at=shared_now())
    return len(found)


def _announce_request(row: Decision) -> None:
    tool = subject_of(row).tool
    title, needed = _WORDS[row.kind]
    until = "" if row.expires_at is None else f"{row.expires_at:%Y-%m-%d %H:%M} UTC"
    announce_with_mail(
        team_id=row.team_id,
        object_id=row.pk,
        kind=NotificationKind.APPROVAL_REQUESTED,
        message={
            "subject": f"{title}: {tool} for the team {row.team.name}",
            # The model chooses the arguments, and they may be secret, so the mail does not contain them.
            "text": f"A response of the team {row.team.name} {needed}\n\n"
            f"Tool: {tool}\nResponse: {row.response_id}\nWithout a decision until {until}, the response fails.",
            "path": page_of(row.pk),
        },
        data={**_data(row), "expires_at": None if row.expires_at is None else int(row.expires_at.timestamp())},
    )


def announce_decision(row: Decision, decision: str) -> None:
    """Send the webhook event about a decision that was made or has expired, in the caller's transaction."""
    data = {**_data(row), "decision": decision}
    announce(team_id=row.team_id, event_type="approval.decided", object_id=row.pk, data=data)


def _data(row: Decision) -> dict[str, Any]:
    return {"response_id": row.response_id, "kind": row.kind, "url": f"{settings.PUBLIC_URL}{page_of(row.pk)}"}
