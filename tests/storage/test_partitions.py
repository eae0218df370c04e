"""Partitions by month (UTC): created ahead of time, chosen by the time of a row, read alone, and dropped when old."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from core.clock import now
from core.db.partitions import MONTHS_AHEAD, month_of
from core.db.partitions import partitions as partitions_of
from core.ids import new_id
from responses.lifecycle.partitions import EVENTS, TURNS, USAGE, create_partitions, drop_old_partitions
from responses.models import EventBatch, Response, Status, Turn
from tenants import scope
from tenants.models import Team, UsageRecord
from tests.support.api import Caller

pytestmark = pytest.mark.usefixtures("rolled_back")
TABLES = (EVENTS, TURNS, USAGE)
NEW_YEAR = datetime(2032, 1, 1, tzinfo=UTC)
LAST_YEAR = NEW_YEAR - timedelta(microseconds=1000)


@pytest.fixture
def rolled_back(database: None) -> Iterator[None]:
    """A transaction that sees every team and is rolled back, with everything that it creates or drops."""
    with transaction.atomic(), scope.every_team():
        yield
        transaction.set_rollback(True)


def names() -> set[str]:
    return {partition.name for table in TABLES for partition in partitions_of(table)}


def query(sql: str, *parameters: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [*cursor.fetchall()]


def table_of(row: Any) -> str:
    """Return the table in which PostgreSQL has put the row."""
    column, value = ("object_id", row.object_id) if isinstance(row, UsageRecord) else ("response_id", row.response_id)
    ((name,),) = query(f"SELECT tableoid::regclass::text FROM {row._meta.db_table} WHERE {column} = %s", value)
    return str(name)


def rows_of(caller: Caller, at: datetime) -> tuple[EventBatch, Turn, UsageRecord]:
    """Store the rows that a response of that time leaves behind."""
    key = new_id("resp", at=at)
    batch = EventBatch.objects.create(
        team=caller.team, response_id=key, first_sequence=0, last_sequence=1, created_at=at, compressed=b"x"
    )
    times: Any = {"started_at": at, "ended_at": at}
    turn = Turn.objects.create(team=caller.team, response_id=key, number=0, state="stop", **times)
    usage = UsageRecord.objects.create(
        team=caller.team, occurred_at=at, endpoint="responses", object_id=key, model="m", outcome="stop"
    )
    # Foreign keys are checked at the end of a transaction, and a table with pending checks cannot be dropped.
    connection.check_constraints()
    return batch, turn, usage


def read_tables(rows: Any) -> set[str]:
    """Return the partitions that a query reads."""
    return set(re.findall(r" on (\w+_(?:y\d{4}m\d\d|default)) ", rows.explain()))


def test_partitions_of_this_month_and_the_next_exist_after_the_migrations() -> None:
    for table in TABLES:
        months = [partition.month for partition in partitions_of(table)]
        assert [month_of(now(), later=later) for later in range(MONTHS_AHEAD)] == months[:MONTHS_AHEAD]


def test_missing_partitions_are_created_once_and_across_the_end_of_a_year() -> None:
    before = names()
    assert create_partitions(at=LAST_YEAR) == 3 * len(TABLES)
    months = ("y2031m12", "y2032m01", "y2032m02")
    assert names() - before == {f"{table.name}_{month}" for table in TABLES for month in months}
    assert create_partitions(at=LAST_YEAR) == 0
    assert create_partitions(at=NEW_YEAR) == len(TABLES)


def test_the_last_and_the_first_moment_of_a_month_are_in_different_partitions(caller: Caller) -> None:
    create_partitions(at=LAST_YEAR)
    for at, month in ((LAST_YEAR, "y2031m12"), (NEW_YEAR, "y2032m01")):
        for row, table in zip(rows_of(caller, at), TABLES, strict=True):
            assert table_of(row) == f"{table.name}_{month}"


def test_rows_without_a_partition_are_stored_and_moved_when_it_is_created(caller: Caller) -> None:
    stored = [rows_of(caller, at) for at in (LAST_YEAR, NEW_YEAR)]
    assert {table_of(row) for rows in stored for row in rows} == {f"{table.name}_default" for table in TABLES}
    create_partitions(at=NEW_YEAR)
    assert [table_of(row) for row in stored[0]] == [f"{table.name}_default" for table in TABLES]
    assert [table_of(row) for row in stored[1]] == [f"{table.name}_y2032m01" for table in TABLES]


def test_a_new_partition_shows_only_rows_of_the_teams_of_the_transaction(caller: Caller) -> None:
    create_partitions(at=NEW_YEAR)
    rows_of(caller, NEW_YEAR)
    with scope.team("team_other"):
        assert query("SELECT count(*) FROM responses_turn_y2032m01") == [(0,)]
    assert query("SELECT count(*) FROM responses_turn_y2032m01") == [(1,)]


def test_a_look_up_reads_only_the_partition_of_its_month(caller: Caller) -> None:
    create_partitions(at=LAST_YEAR)
    key = new_id("resp", at=NEW_YEAR)
    assert read_tables(EventBatch.objects.filter(response_id=key)) == {"responses_eventbatch_y2032m01"}
    assert read_tables(Turn.objects.filter(response_id__in=[key])) == {"responses_turn_y2032m01"}
    days = (NEW_YEAR - timedelta(days=20), NEW_YEAR - timedelta(days=10))
    of_month = UsageRecord.objects.filter(team=caller.team, occurred_at__range=days)
    assert read_tables(of_month) == {"tenants_usagerecord_y2031m12"}


def test_an_event_log_is_dropped_when_the_retention_of_every_team_is_over(caller: Caller) -> None:
    create_partitions(at=LAST_YEAR)
    batch, turn, usage = rows_of(caller, LAST_YEAR)
    Team.objects.update(log_retention_hours=24)
    Response.objects.filter(ended_at=None).delete()
    assert "responses_eventbatch_y2031m12" not in drop_old_partitions(at=NEW_YEAR + timedelta(days=31))
    Team.objects.filter(pk=caller.team.pk).update(log_retention_hours=100 * 24)
    assert "responses_eventbatch_y2031m12" not in drop_old_partitions(at=NEW_YEAR + timedelta(days=100))
    Team.objects.filter(pk=caller.team.pk).update(log_retention_hours=24)
    assert "responses_eventbatch_y2031m12" in drop_old_partitions(at=NEW_YEAR + timedelta(days=33))
    assert not EventBatch.objects.filter(pk=batch.pk).exists()
    # Turns and usage records are kept forever by default.
    assert (table_of(turn), table_of(usage)) == ("responses_turn_y2031m12", "tenants_usagerecord_y2031m12")


def test_the_event_log_of_a_running_response_is_kept(caller: Caller) -> None:
    create_partitions(at=LAST_YEAR)
    Response.objects.filter(ended_at=None).delete()
    Response.objects.create(
        team=caller.team, api_key=caller.key, created_at=LAST_YEAR, status=Status.IN_PROGRESS, mode="json"
    )
    assert "responses_eventbatch_y2031m12" not in drop_old_partitions(at=NEW_YEAR + timedelta(days=300))


def test_turns_and_usage_records_are_dropped_after_the_configured_months(settings: Any) -> None:
    create_partitions(at=LAST_YEAR)
    settings.TURN_RETENTION_MONTHS, settings.USAGE_RETENTION_MONTHS = 1, 2
    dropped = drop_old_partitions(at=datetime(2032, 2, 1, tzinfo=UTC))
    assert "responses_turn_y2031m12" in dropped
    assert {"responses_turn_y2032m01", "tenants_usagerecord_y2031m12"}.isdisjoint(dropped)
    assert "tenants_usagerecord_y2031m12" in drop_old_partitions(at=datetime(2032, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "call",
    [
        "drop_partition('tenants_team')",
        "drop_partition('responses_turn_default')",
        "drop_partition('responses_turn_y2032m01; DROP TABLE tenants_team')",
        "create_partition('tenants_team', 'tenants_team_y2032m01', 'a', 'b')",
        "create_partition('responses_turn', 'pg_class_y2032m01', 'a', 'b')",
    ],
)
def test_the_application_can_create_and_drop_nothing_but_partitions(call: str) -> None:
    with pytest.raises(DatabaseError, match="not a partition by month"), transaction.atomic():
        query(f"SELECT {call}")
