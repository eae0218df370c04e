from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

_AWAITED = models.Q(state="asked", expires_at__isnull=False)
_KINDS = [
    ("approval", "Approval"),
    ("question", "Question of a tool"),
    ("unknown_outcome", "Unknown outcome"),
]
_STATES = [
    ("asked", "Asked"),
    ("granted", "Granted"),
    ("denied", "Denied"),
    ("expired", "Expired"),
    ("withdrawn", "Withdrawn"),
]


class Migration(migrations.Migration):
    """Runs that wait for decisions. The model of approvals is renamed, but not its table."""

    # For the indexes, which are built without locking the tables.
    atomic = False
    dependencies = [("responses", "0006_planned_starts")]
    operations: list[Any] = [
        migrations.AlterModelTable("approval", "responses_approval"),
        migrations.RenameModel("Approval", "Decision"),
        migrations.AlterField("decision", "state", models.CharField(choices=_STATES, default="asked", max_length=10)),
        migrations.AddField(
            "decision",
            "kind",
            models.CharField(choices=_KINDS, db_default="approval", default="approval", max_length=20),
        ),
        migrations.AddField(
            "decision",
            "expires_at",
            models.DateTimeField(help_text="Set if the run of the response waits until then.", null=True),
        ),
        migrations.AddField(
            "decision",
            "announced_at",
            models.DateTimeField(help_text="When webhooks and mails about it were created.", null=True),
        ),
        migrations.AddField(
            "decision",
            "decided_by",
            models.CharField(db_default="", default="", help_text="The user or API key.", max_length=200),
        ),
        migrations.AddField("decision", "reason", models.TextField(db_default="", default="")),
        migrations.AddField(
            "decision",
            "dispatched_at",
            models.DateTimeField(help_text="When the call was made. It is made only once.", null=True),
        ),
        # Earlier releases used an approval up when it was answered.
        migrations.RunSQL(
            "UPDATE responses_approval SET dispatched_at = answered_at WHERE state = 'granted'",
            migrations.RunSQL.noop,
        ),
        migrations.AddField(
            "response",
            "waits_until",
            models.DateTimeField(
                help_text="The run waits for decisions of people until then. No worker claims it meanwhile.", null=True
            ),
        ),
        AddIndexConcurrently(
            "decision", models.Index(condition=_AWAITED, fields=["expires_at"], name="decision_awaited")
        ),
        AddIndexConcurrently(
            "decision",
            models.Index(
                condition=_AWAITED & models.Q(announced_at__isnull=True),
                fields=["asked_at"],
                name="decision_unannounced",
            ),
        ),
        AddIndexConcurrently(
            "response",
            models.Index(
                # `status__in` would be written in another way after the database was dumped.
                condition=(models.Q(status="queued") | models.Q(status="in_progress"))
                & models.Q(background=True, waits_until__isnull=True),
                fields=["team", "created_at"],
                name="response_claimable_by_team",
            ),
        ),
        RemoveIndexConcurrently("response", "response_background_by_team"),
    ]
