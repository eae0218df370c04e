"""Decisions of people about tool calls, such as the approval of a call."""

from django.db import models
from django.db.models import Q

from core.clock import now
from responses.models.responses import Response
from tenants.models import IdField, TeamRow


class DecisionKind(models.TextChoices):
    """The kinds of decisions. A run waits for each kind in the same way."""

    APPROVAL = "approval", "Approval"
    QUESTION = "question", "Question of a tool"
    UNKNOWN_OUTCOME = "unknown_outcome", "Unknown outcome"


class DecisionState(models.TextChoices):
    """The states of a decision."""

    ASKED = "asked", "Asked"
    GRANTED = "granted", "Granted"
    DENIED = "denied", "Denied"
    ANSWERED = "answered", "Answered"
    EXPIRED = "expired", "Expired"
    WITHDRAWN = "withdrawn", "Withdrawn"


IS_AWAITED = Q(state=DecisionState.ASKED, expires_at__isnull=False)
"""The condition of decisions for which a run waits. PostgreSQL uses the indexes only for queries with it."""

HAS_WAITED = Q(expires_at__isnull=False)
"""The condition of decisions for which a run waits or has waited."""


class Decision(TeamRow):
    """A decision about a tool call. The decision about an MCP call has the same id as the approval request item.

    If a run waits for it, `expires_at` is set, and a person decides through the API or in the console. Otherwise, the
    response has completed, and the client answers in a later request, which is `answered_in`.

    The row has digests of the data that was shown to the person: `request` is the digest of server, tool and arguments,
    `definition` the digest of the tool's description. They ensure that an answer approves exactly the call that was
    shown. An approval belongs to its call: until `dispatched_at`, another request may answer if the first one failed.

    The other kinds are about a call that was made: they have no digests, and belong to one `attempt` of the call.
    """

    id = IdField()
    kind = models.CharField(
        max_length=20, choices=DecisionKind.choices, default=DecisionKind.APPROVAL, db_default=DecisionKind.APPROVAL
    )
    response = models.ForeignKey(Response, on_delete=models.CASCADE, related_name="+")
    call_id = models.CharField(max_length=64, db_collation="C")
    turn = models.PositiveIntegerField(null=True, help_text="The turn of the call, as call ids may be repeated.")
    attempt = models.PositiveIntegerField(default=0, db_default=0, help_text="The start of the call that it is about.")
    request = models.CharField(max_length=64)
    definition = models.CharField(max_length=64)
    state = models.CharField(max_length=10, choices=DecisionState.choices, default=DecisionState.ASKED)
    asked_at = models.DateTimeField(default=now)
    expires_at = models.DateTimeField(null=True, help_text="Set if the run of the response waits until then.")
    announced_at = models.DateTimeField(null=True, help_text="When webhooks and mails about it were created.")
    answered_at = models.DateTimeField(null=True)
    answered_in = models.CharField(
        max_length=64, null=True, db_collation="C", help_text="The response whose request contained the answer."
    )
    decided_by = models.CharField(max_length=200, default="", db_default="", help_text="The user or API key.")
    reason = models.TextField(default="", db_default="")
    question = models.JSONField(null=True, help_text="The question of a tool.")
    answer = models.JSONField(null=True, help_text="The answer about an unknown outcome, or to a question.")
    dispatched_at = models.DateTimeField(null=True, help_text="When the call was made. It is made only once.")

    class Meta:
        # The name of the table that the first releases created.
        db_table = "responses_approval"
        indexes = [
            models.Index(fields=["team", "asked_at"], name="approval_by_team_and_time"),
            models.Index(fields=["answered_in"], condition=Q(answered_in__isnull=False), name="approval_by_answer"),
            # Only decisions for which runs wait are in these indexes, and hardly any in the last one.
            models.Index(fields=["expires_at"], condition=IS_AWAITED, name="decision_awaited"),
            models.Index(fields=["team", "expires_at"], condition=IS_AWAITED, name="decision_awaited_by_team"),
            models.Index(
                fields=["asked_at"], condition=IS_AWAITED & Q(announced_at__isnull=True), name="decision_unannounced"
            ),
            # For the inbox, which lists only decisions for which runs wait or have waited.
            models.Index(fields=["state", "asked_at"], condition=HAS_WAITED, name="decision_by_state"),
            models.Index(fields=["team", "state", "asked_at"], condition=HAS_WAITED, name="decision_by_team_and_state"),
        ]
