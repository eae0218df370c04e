"""Monthly partitions of event logs, turns and usage records: created in advance, and dropped after their retention.

Ids of responses begin with their creation time and sort by it, so the tables are partitioned by the id of the response.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Max

from core.clock import now
from core.db import partitions
from core.db.partitions import MonthlyTable, Partition
from core.ids import Prefix, lowest_id
from core.telemetry import metrics
from responses.models import RUNNING, Response
from tenants import scope
from tenants.models import Team


def _lowest_response_id(month: datetime) -> str:
    return lowest_id(Prefix.RESPONSE, at=month)


EVENTS = MonthlyTable(name="responses_eventbatch", lowest=_lowest_response_id)
TURNS = MonthlyTable(name="responses_turn", lowest=_lowest_response_id)
USAGE = MonthlyTable(name="tenants_usagerecord", lowest=datetime.isoformat)

# A run that was created at the end of a month may end in the next month. No run lasts longer than this.
_LONGEST_RUN = timedelta(days=31)


def create_partitions(*, at: datetime | None = None, using: str = "default") -> int:
    """Create the partitions of the current month and the next ones. Return the number created."""
    return partitions.create_ahead((EVENTS, TURNS, USAGE), at=at or now(), using=using)


def drop_old_partitions(*, at: datetime | None = None) -> list[str]:
    """Drop the partitions whose rows are all past their retention. Return their names."""
    at = at or now()
    old = [partition for partition in partitions.partitions(EVENTS) if _is_expired_log(partition, at)]
    for table, months in ((TURNS, settings.TURN_RETENTION_MONTHS), (USAGE, settings.USAGE_RETENTION_MONTHS)):
        if months:
            first_kept = partitions.month_of(at, later=-months)
            old += [partition for partition in partitions.partitions(table) if partition.month < first_kept]
    dropped = [partition.name for partition in old if partitions.drop(partition)]
    metrics.PARTITIONS_DROPPED.inc(len(dropped))
    return dropped


def _is_expired_log(partition: Partition, at: datetime) -> bool:
    """Return true if the log retention of every team is over for all responses of the partition's month."""
    end = partitions.month_of(partition.month, later=1)
    with scope.every_team():
        hours = Team.objects.aggregate(longest=Max("log_retention_hours"))["longest"] or 0
        if end + _LONGEST_RUN + timedelta(hours=hours) > at:
            return False
        return not Response.objects.filter(status__in=RUNNING, created_at__lt=end).exists()
