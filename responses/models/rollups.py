"""Hourly and daily sums (UTC) of responses, upstream calls and tool calls, from which the usage pages are drawn.

Each table has sums of the same hour at several levels of detail, so that a query reads few rows. A past day has sums at
the same levels, whose numbers are higher by `responses.rollups.sources.DAY`. `level` is the set of columns by which a
row is grouped (see `responses.rollups.sources`); other columns are empty. A row without a team is the sum of all teams,
and is visible only to callers who see every team. The same sum may consist of several rows, because late data is added
as additional rows, so queries must always add rows up. Histograms are arrays of counts for fixed buckets (see
`responses.rollups.histograms`), from the first to the last bucket that is not empty.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from typing_extensions import override

from tenants.models import Team, TeamRow
from tenants.models.limits import END_USER_LENGTH


class Hour(models.Model):
    """The columns that all rollup tables have in common."""

    hour = models.DateTimeField(help_text="The start of the hour or day.")
    level = models.PositiveSmallIntegerField()
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)

    class Meta:
        abstract = True

    @override
    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}:00 UTC"


class Tokens(models.Model):
    """Sums of tokens and of their cost."""

    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    cache_write_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    # Wider than the cost of a single call: this is the sum over an hour.
    # Empty if no call had a price.
    cost = models.DecimalField(max_digits=24, decimal_places=10, null=True)
    unpriced = models.PositiveBigIntegerField(default=0, help_text="Responses or calls whose cost is unknown.")

    class Meta:
        abstract = True


class ResponseHour(Hour, Tokens):
    """The responses that were created in an hour."""

    api_key_id = models.CharField(max_length=64, default="", db_collation="C")
    model = models.CharField(max_length=200, default="")
    upstream_id = models.CharField(max_length=64, default="", db_collation="C")
    status = models.CharField(max_length=12, default="")
    mode = models.CharField(max_length=10, default="")
    responses = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    tool_calls = models.PositiveBigIntegerField(default=0)
    duration = ArrayField(models.IntegerField(), default=list)
    first_token = ArrayField(models.IntegerField(), default=list)

    class Meta:
        # Queries of a team use the first index, those over all teams the second.
        indexes = [
            models.Index(fields=["level", "team", "hour"], name="response_hour_of_team"),
            models.Index(fields=["level", "hour"], name="response_hour_by_time"),
        ]


class CallHour(Hour, Tokens):
    """The upstream calls that ended in an hour, of all endpoints; from the usage records."""

    api_key_id = models.CharField(max_length=64, default="", db_collation="C")
    model = models.CharField(max_length=200, default="")
    upstream_id = models.CharField(max_length=64, default="", db_collation="C")
    end_user = models.CharField(max_length=END_USER_LENGTH, default="", db_collation="C")
    endpoint = models.CharField(max_length=40, default="")
    outcome = models.CharField(max_length=20, default="")
    batch = models.CharField(max_length=5, default="", help_text="true or false")
    service_tier = models.CharField(max_length=40, default="")
    calls = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    input_audio_tokens = models.PositiveBigIntegerField(default=0)
    input_image_tokens = models.PositiveBigIntegerField(default=0)
    output_audio_tokens = models.PositiveBigIntegerField(default=0)
    output_image_tokens = models.PositiveBigIntegerField(default=0)
    audio_seconds = models.FloatField(default=0)
    characters = models.PositiveBigIntegerField(default=0)
    images = models.PositiveBigIntegerField(default=0)
    budget_cost = models.DecimalField(max_digits=24, decimal_places=10, null=True, help_text="What hard budgets count.")
    duration = ArrayField(models.IntegerField(), default=list)

    class Meta:
        indexes = [
            models.Index(fields=["level", "team", "hour"], name="call_hour_of_team"),
            models.Index(fields=["level", "hour"], name="call_hour_by_time"),
        ]


class ToolHour(Hour):
    """The tool calls that started in an hour."""

    kind = models.CharField(max_length=40, default="")
    name = models.CharField(max_length=200, default="")
    status = models.CharField(max_length=20, default="")
    calls = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    duration = ArrayField(models.IntegerField(), default=list)

    class Meta:
        indexes = [
            models.Index(fields=["level", "team", "hour"], name="tool_hour_of_team"),
            models.Index(fields=["level", "hour"], name="tool_hour_by_time"),
        ]


class UnrolledRow(TeamRow):
    """A reference to a row that had not ended, or did not exist, when its hour was rolled up. It is in no sum yet."""

    source = models.CharField(max_length=10)
    row_id = models.CharField(max_length=64, db_collation="C")
    hour = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "row_id"], name="unrolled_row_once")]
        indexes = [models.Index(fields=["hour"], name="unrolled_row_by_hour")]

    @override
    def __str__(self) -> str:
        return self.row_id


class RollupMark(models.Model):
    """The time up to which everything is rolled up. The table has one row, or none before the first rollup."""

    # A fixed key keeps the table at one row.
    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    until = models.DateTimeField()
    days_until = models.DateTimeField(null=True, help_text="The time up to which days have sums.")

    @override
    def __str__(self) -> str:
        return f"{self.until:%Y-%m-%d %H}:00 UTC"
