"""Batches and their lines: files of requests that are processed within a day."""

from django.db import models
from django.db.models import Q
from typing_extensions import override

from core.clock import now
from core.ids import new_id
from tenants.models import ApiKey, IdField, TeamRow


def batch_id() -> str:
    """Return a new id of a batch."""
    return new_id("batch")


def line_id() -> str:
    """Return a new id of a line of a batch."""
    return new_id("batch_req")


class BatchStatus(models.TextChoices):
    """The statuses of a batch, as in the API."""

    VALIDATING = "validating", "Validating"
    FAILED = "failed", "Failed"
    IN_PROGRESS = "in_progress", "In progress"
    FINALIZING = "finalizing", "Finalizing"
    COMPLETED = "completed", "Completed"
    EXPIRED = "expired", "Expired"
    CANCELLING = "cancelling", "Cancelling"
    CANCELLED = "cancelled", "Cancelled"


OPEN_BATCHES = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


class Batch(TeamRow):
    """A batch. The counts and the output files are set when it ends.

    `ending` is a terminal status that was decided before the batch has ended, for example by a cancellation. The worker
    that reads the input or writes the output holds the lease, and can commit only with the current `lease_token`.
    """

    id = IdField(default=batch_id)
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    created_at = models.DateTimeField(default=now)
    status = models.CharField(max_length=12, choices=BatchStatus.choices, default=BatchStatus.VALIDATING)
    ending = models.CharField(max_length=12, choices=BatchStatus.choices, default=BatchStatus.COMPLETED)
    endpoint = models.CharField(max_length=40)
    completion_window = models.CharField(max_length=10)
    model = models.CharField(
        max_length=200, null=True, blank=True, help_text="The model of all lines, if they use the same one."
    )
    metadata = models.JSONField(null=True)
    input_file_id = models.CharField(max_length=64, db_collation="C")
    output_file_id = models.CharField(max_length=64, null=True, db_collation="C")
    error_file_id = models.CharField(max_length=64, null=True, db_collation="C")
    output_seconds = models.PositiveIntegerField(null=True, help_text="Retention of the output files, in seconds.")
    errors = models.JSONField(null=True, help_text="Errors of the input file.")
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    request_id = models.CharField(max_length=64, default="")

    # Lines that have no answer at this time end with the error `batch_expired`.
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    cancelling_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    lease_owner = models.CharField(max_length=120, null=True)
    lease_token = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True)
    # Number of consecutive failures to read the input file or to write the results. Attempts are repeated after
    # increasing pauses.
    file_failures = models.PositiveIntegerField(default=0, db_default=0)
    file_error = models.CharField(max_length=200, default="", db_default="")
    files_retry_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "batches"
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="batch_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="batch_by_time"),
            # Partial, because workers search only for open batches, which are few.
            models.Index(fields=["created_at"], condition=Q(status__in=OPEN_BATCHES), name="batch_open_by_time"),
        ]


class LineState(models.TextChoices):
    """The states of a line. The answer of a failed line is an error or missing."""

    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    COMPLETED = "completed", "Completed"
    FAILED = "failed", "Failed"


OPEN_LINES = (LineState.QUEUED, LineState.RUNNING)


class BatchLine(TeamRow):
    """One request of a batch.

    The body is deleted when the line has an answer, and the row when the output files of the batch are written. Each
    claim of the line increments `lease_token`.
    """

    id = IdField(default=line_id)
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="lines", db_index=False)
    position = models.PositiveIntegerField()
    custom_id = models.CharField(max_length=512)
    state = models.CharField(max_length=10, choices=LineState.choices, default=LineState.QUEUED)
    # Body and answer are JSON as text, because they may contain characters that PostgreSQL's JSON types reject.
    body = models.TextField(default="")
    attempt = models.PositiveIntegerField(default=0)
    # Set when a line is queued again after a failed attempt.
    not_before = models.DateTimeField(null=True, help_text="The earliest time of the next attempt.")
    needs_budget = models.DecimalField(
        null=True,
        max_digits=24,
        decimal_places=12,
        help_text="US dollars of a budget with which it need not wait until then; 0 if another limit blocks it.",
    )
    lease_owner = models.CharField(max_length=120, null=True)
    lease_token = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True)
    request_id = models.CharField(max_length=64, default="")
    status_code = models.PositiveIntegerField(null=True)
    answer = models.TextField(default="")
    error_code = models.CharField(max_length=60, null=True, help_text="The reason why there is no answer.")
    input_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name = "line of a batch"
        verbose_name_plural = "lines of batches"
        constraints = [models.UniqueConstraint(fields=["batch", "position"], name="batch_line_position_once")]
        indexes = [models.Index(fields=["batch", "state", "position"], name="batch_line_by_state")]

    @override
    def __str__(self) -> str:
        return self.custom_id
