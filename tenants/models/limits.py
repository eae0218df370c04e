"""Models of limits, budgets and reservations. `limits` enforces them."""

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from typing_extensions import override

from core.clock import now
from tenants.models.teams import Team, TeamRow
from tenants.prices import CostField

EVERY_END_USER = "*"
END_USER_LENGTH = 128
# The script counts in units of 10^-10 dollars, and Lua's numbers are exact up to 2^53.
MAX_BUDGET = 900_000


class Period(models.TextChoices):
    """Period of a budget. It begins at midnight in the team's time zone; a week begins on Monday."""

    DAY = "day", "Day"
    WEEK = "week", "Week"
    MONTH = "month", "Month"


LIMITS = (
    "requests_per_minute",
    "tokens_per_minute",
    "requests_per_day",
    "concurrent_runs",
    "queued_runs",
    "open_streams",
    "max_output_tokens",
    "max_tool_calls",
    "stored_bytes",
    "files",
    "open_batches",
)
"""The names of all limits: columns of `LimitSet`."""


def _limit(label: str, help_text: str = "", *, least: int = 1) -> "models.BigIntegerField[int | None, int | None]":
    # The script's arithmetic is exact for limits up to this one.
    bounds = [MinValueValidator(least), MaxValueValidator(100_000_000)]
    return models.BigIntegerField(label, null=True, blank=True, validators=bounds, help_text=help_text)


def _bytes() -> "models.BigIntegerField[int | None, int | None]":
    return models.BigIntegerField(
        "stored bytes",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Size of all files together.",
    )


class LimitSet(TeamRow):
    """Limits of one subject: a team, one of its API keys, or an end user of the team. An empty column means no limit.

    `end_user` is the `safety_identifier` (or `user`) of requests; `*` stands for each end user without own limits.
    """

    api_key = models.ForeignKey("tenants.ApiKey", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    end_user = models.CharField(max_length=END_USER_LENGTH, blank=True, default="", db_collation="C")
    requests_per_minute = _limit("requests per minute")
    tokens_per_minute = _limit("tokens per minute", "Input and output together.")
    requests_per_day = _limit("requests per day")
    concurrent_runs = _limit("concurrent runs", "Responses and other calls that are in progress.")
    queued_runs = _limit("queued runs", "Background responses that have not started.")
    open_streams = _limit("open streams", "Streamed responses and WebSocket connections.")
    max_output_tokens = _limit("output tokens", "Of one response.", least=16)
    max_tool_calls = _limit("tool calls", "Of one response.")
    stored_bytes = _bytes()
    files = _limit("files")
    open_batches = _limit("open batches")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "api_key", "end_user"], name="limit_set_once", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(api_key=None) | models.Q(end_user=""), name="limit_set_has_one_subject"
            ),
        ]

    @override
    def __str__(self) -> str:
        if self.api_key_id:
            return f"limits of the key {self.api_key_id}"
        return f"limits of the end user {self.end_user}" if self.end_user else f"limits of {self.team_id}"


def _alert_percents() -> list[int]:
    return [50, 80, 100]


class Budget(TeamRow):
    """A budget of a subject. A hard budget refuses calls that could exceed it; a soft one only alerts."""

    limit_set = models.ForeignKey(LimitSet, on_delete=models.CASCADE, related_name="budgets")
    period = models.CharField(max_length=5, choices=Period.choices, default=Period.MONTH)
    amount = models.DecimalField(
        max_digits=16,
        decimal_places=10,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_BUDGET)],
        help_text="US dollars per period.",
    )
    is_hard = models.BooleanField("hard", default=True, help_text="Refuse calls that could exceed the budget.")
    allow_unknown_prices = models.BooleanField(
        default=False, help_text="Allow calls of models without a price, which a hard budget otherwise refuses."
    )
    alert_percents = ArrayField(
        models.PositiveSmallIntegerField(), default=_alert_percents, blank=True, help_text="Percentages that alert."
    )
    created_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["limit_set", "period", "is_hard"], name="budget_once")]

    @override
    def __str__(self) -> str:
        return f"${self.amount.normalize():f} per {self.period}"


class ReservationKind(models.TextChoices):
    """Purpose of a reservation."""

    RUN = "run", "Run"
    CALL = "call", "Call"


class Reservation(TeamRow):
    """The amounts of its limits that a run, a call or a stream has reserved.

    The row is stored before the start and deleted when the usage is recorded. The state of the limits in Redis is
    rebuilt from these rows. `details` has the data for billing the call if its process dies. A row without
    `response_id` belongs to the process `lease_owner` until `lease_until`.
    """

    id = models.CharField(max_length=100, primary_key=True, db_collation="C")
    # No foreign key: a row lives for seconds, and keys are not deleted.
    api_key_id = models.CharField(max_length=64, db_collation="C")
    end_user = models.CharField(max_length=END_USER_LENGTH, blank=True, default="", db_collation="C")
    kind = models.CharField(max_length=4, choices=ReservationKind.choices)
    epoch = models.BigIntegerField()
    amount = CostField(default=0, help_text="US dollars, the most that the call can cost.")
    tokens = models.BigIntegerField(default=0)
    is_run = models.BooleanField(default=False, help_text="Counts as a concurrent run.")
    is_queued = models.BooleanField(default=False, help_text="Counts as a queued run.")
    is_stream = models.BooleanField(default=False, help_text="Counts as an open stream.")
    created_at = models.DateTimeField(default=now)
    response_id = models.CharField(max_length=64, default="", db_collation="C")
    lease_owner = models.CharField(max_length=120, default="")
    lease_until = models.DateTimeField(null=True)
    details = models.JSONField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["team"], name="reservation_by_team"),
            models.Index(fields=["created_at"], name="reservation_by_time"),
            models.Index(fields=["response_id"], name="reservation_by_response"),
        ]


class LimitEpoch(models.Model):
    """Number of times that the state of a team's limits in Redis was rebuilt.

    A reservation is stored only if the epoch has not changed since the reservation was made.
    """

    team = models.OneToOneField(Team, primary_key=True, on_delete=models.CASCADE, related_name="+")
    epoch = models.BigIntegerField(default=0)

    @override
    def __str__(self) -> str:
        return f"epoch {self.epoch} of {self.team_id}"


class RejectedRequest(TeamRow):
    """Number of requests that a limit rejected within an hour."""

    hour = models.DateTimeField()
    api_key_id = models.CharField(max_length=64, default="", db_collation="C")
    end_user = models.CharField(max_length=END_USER_LENGTH, default="", db_collation="C")
    limit = models.CharField(max_length=40, help_text="For example requests_per_minute, or budget_month.")
    subject = models.CharField(max_length=10, help_text="team, key or end_user")
    endpoint = models.CharField(max_length=40, default="")
    count = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "hour", "api_key_id", "end_user", "limit", "subject", "endpoint"],
                name="rejected_request_once",
            )
        ]


class RefusedRequest(models.Model):
    """Requests to the API that were answered with the same error within a minute, with the latest of them.

    Without a foreign key, because requests with an unknown key belong to no team: their `team_id` is empty, and only
    staff sees them.
    """

    team_id = models.CharField(max_length=64, default="", db_collation="C")
    minute = models.DateTimeField()
    api_key_id = models.CharField(max_length=64, default="", db_collation="C")
    status = models.PositiveSmallIntegerField()
    code = models.CharField(max_length=60, default="")
    method = models.CharField(max_length=10)
    route = models.CharField(max_length=120, help_text="Template of the path.")
    count = models.BigIntegerField(default=0)
    last_at = models.DateTimeField()
    request_id = models.CharField(max_length=64, default="")
    path = models.CharField(max_length=200, default="")
    model = models.CharField(max_length=200, default="")
    message = models.CharField(max_length=300, default="", help_text="Without values of the request.")
    key_hint = models.CharField(max_length=20, default="", help_text="Beginning and end of an unknown key.")

    class Meta:
        constraints = [
            # It begins with the time, by which pages of all teams are read and old rows are deleted.
            models.UniqueConstraint(
                fields=["minute", "team_id", "api_key_id", "status", "code", "method", "route"],
                name="refused_request_once",
            )
        ]
        indexes = [models.Index(fields=["team_id", "minute"], name="refused_by_team_and_minute")]

    @override
    def __str__(self) -> str:
        return f"{self.count} × {self.status} {self.code} {self.method} {self.route}"
