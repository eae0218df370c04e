# mypy: allow-subclassing-any
"""A person's choice of notifications, and the list of mails with their attempts."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import display, register
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from typing_extensions import override

from console.filters import ChoicesFilter, RelatedFilter, exact
from console.logs import LogAdmin
from console.tables import Column, Table
from console.widgets import TimeFilter, column, duration, time_column, tone, two_lines
from deliveries.notifications import choices_of, set_choice
from deliveries.outbox import queue
from tenants.console.audited_admin import audit_row
from tenants.console.permissions import TeamScoped
from tenants.console.roles import EVERY_ROLE, LEADS, OPERATORS, STAFF
from tenants.console.row_actions import RowAction
from tenants.console.site import page, render
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import MailDelivery
from tenants.models.notifications import DELIVERY_TONES

MANAGERS = LEADS | OPERATORS


@page("notifications/", name="notifications", viewers=EVERY_ROLE)
def notifications(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Show the user's choices for each of their teams, and store them on POST."""
    user = request.user
    if not isinstance(user, User):
        raise PermissionDenied
    choices = choices_of(user)
    if request.method == "POST":
        chosen = set(request.POST.getlist("by_mail"))
        for choice in choices:
            by_mail = f"{choice.team_id} {choice.kind.value}" in chosen
            # Choices left at their default keep following the role.
            if by_mail != choice.by_mail:
                set_choice(user_id=user.pk, team_id=choice.team_id, kinds=[choice.kind], by_mail=by_mail)
        messages.success(request, "Your notifications were saved.")
        return HttpResponseRedirect(reverse("console:notifications"))
    teams: dict[str, dict[str, Any]] = {}
    for choice in choices:
        team = teams.setdefault(choice.team_id, {"name": choice.team_name, "choices": []})
        team["choices"].append(
            {
                "value": f"{choice.team_id} {choice.kind.value}",
                "label": choice.kind.label,
                "by_mail": choice.by_mail,
            }
        )
    return render(
        request,
        "console/notifications.html",
        title="Notifications",
        teams=list(teams.values()),
        address=user.email,
        has_mail=bool(settings.EMAIL_HOST),
        is_fullwidth=False,
    )


_ATTEMPTS: Sequence[Column[dict[str, Any]]] = (
    Column("Time (UTC)", lambda attempt: attempt["at"]),
    Column("Status", lambda attempt: "no response" if attempt["status"] is None else str(attempt["status"])),
    Column("Duration", lambda attempt: f"{attempt['ms']} ms"),
    Column("Response", lambda attempt: attempt["error"] or attempt["body"]),
)


def attempt_table(history: Sequence[dict[str, Any]]) -> str:
    """Return the attempts of a delivery, newest first, as a field of its page."""
    if not history:
        return "No attempts yet."
    # The history is stored oldest first.
    return Table(title="Attempts", columns=_ATTEMPTS, rows=history[::-1], css="c-fit").html


@register(MailDelivery)
class MailAdmin(LogAdmin, TeamScoped):
    """Read-only list of mails. Only leads and staff see them, as they contain addresses."""

    empty_text = "Mails about budgets, approvals and invitations appear here."

    viewers = LEADS | STAFF
    list_display = ["time", "about", "recipient", "state_badge", "attempts", "answer", "next_attempt"]
    list_prefetch = ("team",)
    list_filter = [
        ("created_at", TimeFilter),
        ("state", ChoicesFilter),
        ("team", RelatedFilter),
        exact("address", "address"),
    ]
    search_fields = ["id", "address"]
    search_help_text = "Exact ID (mail_…, also in the Message-ID) or address"
    actions_detail = ["resend"]
    fieldsets = [
        (None, {"fields": [("time", "state_badge"), ("about", "recipient"), ("answer", "next_attempt"), "body"]}),
        ("Attempts", {"fields": ["attempt_table"]}),
    ]

    @override
    def search_condition(self, request: HttpRequest, term: str) -> Q:
        return Q(pk=term) if term.startswith("mail_") else Q(address=term)

    @RowAction(
        title="Resend",
        icon="replay",
        permits=lambda viewer, mail: viewer.may(MANAGERS, mail),
        question="Resend this mail?",
        description=lambda mail: f"{mail.address} receives the mail again with the same Message-ID.",
    )
    def resend(self, request: HttpRequest, mail: MailDelivery) -> None:
        """Schedule an immediate attempt."""
        if queue.resend(mail):
            audit_row(viewer_of(request), mail, "resent", after={"address": mail.address})
            messages.success(request, "The mail is being resent.")
        else:
            messages.info(request, "An attempt is already in progress.")

    # -- columns -------------------------------------------------------------------------------------------------------

    time = time_column("Time", "created_at")
    about = column("Subject", lambda mail: two_lines(mail.subject, mail.team.name))
    recipient = column("Recipient", lambda mail: mail.address)
    state_badge = column("Status", lambda mail: tone(DELIVERY_TONES, mail.state))
    body = column("Text", lambda mail: mail.text)
    next_attempt = column(
        "Next attempt",
        lambda mail: f"{mail.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC" if mail.next_attempt_at else "–",
    )

    @display(description="Last answer")
    def answer(self, mail: MailDelivery) -> SafeString | str:
        if not mail.attempts:
            return "–"
        return two_lines(f"{mail.last_status or 'no answer'} after {duration(mail.last_ms)}", mail.last_error[:80])

    attempt_table = column("Attempts", lambda mail: attempt_table(mail.history))
