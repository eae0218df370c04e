"""Sums by the hour (UTC), from which the pages of usage are drawn: of responses, of upstream calls, and of tool calls.

Each table holds the same hour several times, at different levels of detail, so that a question reads few rows. `level`
says which columns a row tells apart (`responses.rollups.sources`); those that it does not are empty, and a row without
a team is the sum of all, which only those see who see every team. A cell may be several rows (what ended late adds one
of its own): whoever reads sums. Histograms are arrays over fixed buckets (`responses.rollups.histograms`), from their
first to their last count.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from typing_extensions import override

from tenants.models import Team


class Hour(models.Model):
    """What the tables have in common."""

    hour = models.DateTimeField(help_text="Its beginning.")
    level = models.PositiveSmallIntegerField()
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)

    class Meta:
        abstract = True

    @override
    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}:00 UTC"


class Tokens(models.Model):
    """Sums of tokens, and of what they cost."""

    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    cache_write_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    cost = models.DecimalField(max_digits=24, decimal_places=10, default=0)

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
        indexes = [
            models.Index(fields=["level", "team", "hour"], name="response_hour_of_team"),
            models.Index(fields=["level", "hour"], name="response_hour_by_time"),
        ]


class CallHour(Hour, Tokens):
    """The ledger's calls that ended in an hour: those of responses, and of every other endpoint."""

    api_key_id = models.CharField(max_length=64, default="", db_collation="C")
    model = models.CharField(max_length=200, default="")
    upstream_id = models.CharField(max_length=64, default="", db_collation="C")
    endpoint = models.CharField(max_length=40, default="")
    outcome = models.CharField(max_length=20, default="")
    calls = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    duration = ArrayField(models.IntegerField(), default=list)

    class Meta:
        indexes = [
            models.Index(fields=["level", "team", "hour"], name="call_hour_of_team"),
            models.Index(fields=["level", "hour"], name="call_hour_by_time"),
        ]


class ToolHour(Hour):
    """The tool calls that began in an hour."""

    kind = models.CharField(max_length=40, default="")
    name = models.CharField(max_length=200, default="")
    status = models.CharField(max_length=12, default="")
    calls = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    duration = ArrayField(models.IntegerField(), default=list)

    class Meta:
        indexes = [
            models.Index(fields=["level", "team", "hour"], name="tool_hour_of_team"),
            models.Index(fields=["level", "hour"], name="tool_hour_by_time"),
        ]


class UnrolledRow(models.Model):
    """A row of an hour that is rolled up already, which had not ended by then: it is in no sum yet."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
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
    """Up to when everything is rolled up: one row, or none before the first time. Belongs to no team."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    until = models.DateTimeField()

    @override
    def __str__(self) -> str:
        return f"{self.until:%Y-%m-%d %H}:00 UTC"
