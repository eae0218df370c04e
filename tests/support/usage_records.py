"""Usage records that tests wait for."""

from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Caller
from tests.support.waiting import eventually


def stored_usage_records(caller: Caller) -> list[UsageRecord]:
    """Return the test team's usage records in the order of their ends; records of one request appear together."""
    with scope.team(caller.team.pk):
        return list(UsageRecord.objects.order_by("occurred_at", "id"))


def usage_record(caller: Caller) -> UsageRecord:
    """Return the only usage record of the test's team, which is written at the end of a stream."""
    (row,) = eventually(lambda: stored_usage_records(caller))
    return row


def usage_records(caller: Caller, count: int) -> list[UsageRecord]:
    """Return the usage records of the test's team in the order of their ends, once there are this many."""

    def found() -> list[UsageRecord]:
        rows = stored_usage_records(caller)
        return rows if len(rows) >= count else []

    rows = eventually(found)
    assert len(rows) == count
    return rows
