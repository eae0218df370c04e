"""Tables of idempotency keys: requests with a key, and their answers."""

from django.db import models
from typing_extensions import override

from core.clock import now
from core.ids import new_id

MAX_KEY_LENGTH = 255
MAX_PATH_LENGTH = 1_000


class State(models.TextChoices):
    """State of a request. The answer to an answered request is complete."""

    RUNNING = "running"
    ANSWERED = "answered"


def request_id() -> str:
    """Return a new id of a request."""
    return new_id("idem")


class IdempotentRequest(models.Model):
    """A request with an idempotency key, and the first line of its answer.

    The process that executes it has the lease. `team_id` is the id of an admin key for requests without a team.
    `fingerprint` is the SHA-256 of the body. If the answer is not stored (`is_stored`), it can be read only for a
    moment after its end. Rows are valid until `expires_at`.
    """

    id = models.CharField(max_length=64, primary_key=True, default=request_id, editable=False, db_collation="C")
    team_id = models.CharField(max_length=64, db_collation="C")
    api_key_id = models.CharField(max_length=64, db_collation="C")
    method = models.CharField(max_length=9)
    path = models.CharField(max_length=MAX_PATH_LENGTH)
    key = models.CharField(max_length=MAX_KEY_LENGTH, db_collation="C")
    fingerprint = models.BinaryField(max_length=32)
    request_id = models.CharField(max_length=64)
    state = models.CharField(max_length=8, choices=State.choices, default=State.RUNNING)
    is_stored = models.BooleanField(default=True)
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=list)
    lease_owner = models.CharField(max_length=120, default="")
    lease_token = models.PositiveIntegerField(default=1)
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=now)
    answered_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team_id", "api_key_id", "method", "path", "key"], name="idempotency_key_once"
            )
        ]
        indexes = [
            models.Index(fields=["expires_at"], name="idempotency_by_expiry"),
            models.Index(fields=["team_id", "request_id"], name="idempotency_by_request"),
            models.Index(
                fields=["answered_at"],
                condition=models.Q(is_stored=False, answered_at__isnull=False),
                name="idempotency_unstored",
            ),
        ]

    @override
    def __str__(self) -> str:
        return str(self.pk)


class AnswerChunk(models.Model):
    """A part of the body of an answer. The number increases, but there may be gaps after a new attempt."""

    team_id = models.CharField(max_length=64, db_collation="C")
    request = models.ForeignKey(IdempotentRequest, on_delete=models.CASCADE, related_name="chunks", db_index=False)
    number = models.PositiveIntegerField()
    data = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["request", "number"], name="idempotency_chunk_once")]

    @override
    def __str__(self) -> str:
        return f"{self.request_id}/{self.number}"
