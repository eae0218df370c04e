from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

_AWAITED = models.Q(state="asked", expires_at__isnull=False)
_HAS_WAITED = models.Q(expires_at__isnull=False)


class Migration(migrations.Migration):
    """Indexes for the inbox of decisions in the console."""

    # The indexes are built without locking the table.
    atomic = False
    dependencies = [("responses", "0008_unknown_outcomes")]
    operations: list[Any] = [
        AddIndexConcurrently(
            "decision",
            models.Index(condition=_AWAITED, fields=["team", "expires_at"], name="decision_awaited_by_team"),
        ),
        AddIndexConcurrently(
            "decision",
            models.Index(condition=_HAS_WAITED, fields=["state", "asked_at"], name="decision_by_state"),
        ),
        AddIndexConcurrently(
            "decision",
            models.Index(
                condition=_HAS_WAITED, fields=["team", "state", "asked_at"], name="decision_by_team_and_state"
            ),
        ),
    ]
