from typing import Any

from django.db import migrations, models

_STATES = [
    ("asked", "Asked"),
    ("granted", "Granted"),
    ("denied", "Denied"),
    ("answered", "Answered"),
    ("expired", "Expired"),
    ("withdrawn", "Withdrawn"),
]
_WAITED = "How long it has waited for decisions of people. Durations do not include it."


class Migration(migrations.Migration):
    """Decisions about calls that were made, and the time for which runs and calls have waited."""

    dependencies = [("responses", "0010_tool_hour_status")]
    operations: list[Any] = [
        migrations.AddField(
            "decision",
            "answer",
            models.JSONField(help_text="The answer about an unknown outcome, or to a question.", null=True),
        ),
        migrations.AddField(
            "decision",
            "attempt",
            models.PositiveIntegerField(db_default=0, default=0, help_text="The start of the call that it is about."),
        ),
        migrations.AddField(
            "decision", "question", models.JSONField(help_text="The question of a tool.", null=True)
        ),
        migrations.AddField(
            "decision",
            "turn",
            models.PositiveIntegerField(help_text="The turn of the call, as call ids may be repeated.", null=True),
        ),
        migrations.AlterField(
            "decision", "state", models.CharField(choices=_STATES, default="asked", max_length=10)
        ),
        migrations.AddField(
            "response",
            "waits_since",
            models.DateTimeField(help_text="When the run began to wait for decisions of people.", null=True),
        ),
        migrations.AddField(
            "response",
            "waited_ms",
            models.PositiveBigIntegerField(
                help_text="How long the run has waited for decisions. Durations do not include it.", null=True
            ),
        ),
        migrations.AddField(
            "toolcall", "waited_ms", models.PositiveBigIntegerField(help_text=_WAITED, null=True)
        ),
    ]
