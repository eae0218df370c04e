"""The statements of the run writer: their columns, their plans, and poolers that lose prepared statements."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, models
from psycopg.conninfo import make_conninfo

from conversations.models import Item, Placement
from core.db.database import database_conninfo
from core.db.db_threads import in_db_thread
from core.db.group_commit import GroupCommit
from core.db.statement_pipeline import Statement
from engine.events.compression import compress
from responses.models import EventBatch, Response, ToolCall, Turn
from responses.runs import store
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.rows import insertion, new_row
from responses.runs.store import (
    GUARDED,
    CallUpdate,
    Change,
    LeaseGuard,
    LockGuard,
    MarkedWriter,
    PredecessorGuard,
    ResponseUpdate,
)
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Caller
from tests.support.stored_runs import Begun, abegin, begin
from tests.support.transaction_pooler import pooled

TABLES = (Response, Item, Placement, EventBatch, Turn, ToolCall, UsageRecord)


def batch(begun: Begun, number: int) -> Change:
    """Return a change that appends to the log and updates the response."""
    who = begun.who
    row = new_row(
        EventBatch,
        team_id=who.team_id,
        response_id=who.response_id,
        first_sequence=number,
        last_sequence=number,
        compressed=compress(b"event"),
    )
    update = ResponseUpdate(response_id=who.response_id, lease_token=1, status="in_progress", turns=number)
    return Change(team_id=who.team_id, insert=[row], update=update)


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_a_missing_column_without_a_default_is_refused(table: type[models.Model]) -> None:
    with pytest.raises(TypeError, match="team_id"):
        new_row(table)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        new_row(Item, team_id="team_1", id="msg_1", type="message", body={}, colour="red")


@pytest.mark.parametrize("table", TABLES)
def test_a_row_has_the_defaults_of_its_model(table: type[models.Model]) -> None:
    required = {
        field.attname: "x"
        for field in table._meta.concrete_fields
        if not (field.null or field.has_default() or isinstance(field, models.AutoField))
    }
    values, instance = new_row(table, **required).values, table(**required)
    defaults = {field.attname: field.default for field in table._meta.concrete_fields if field.has_default()}
    computed = {name for name, default in defaults.items() if callable(default)}
    columns = [field.attname for field in table._meta.concrete_fields if not isinstance(field, models.AutoField)]
    assert values.keys() <= {*columns}
    assert computed <= values.keys()
    constant = [name for name in columns if name not in computed]
    # Columns without a value are null.
    assert {name: values.get(name) for name in constant} == {name: getattr(instance, name) for name in constant}


# -- plans -------------------------------------------------------------------------------------------------------------


def scans(statement: Statement) -> Iterator[dict[str, Any]]:
    """Return the nodes that read a table in the generic plan of a statement, with the settings of a group."""
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute(store.BEGIN.sql.replace("$1", "'*'"))
        cursor.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {statement.sql}".replace("%", "%%"), [])
        ((plan,),) = cursor.fetchall()
    nodes = [plan[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", ())
        if "Relation Name" in node and node["Node Type"] != "ModifyTable":
            yield node


def test_prepared_statements_find_rows_by_their_key(database: None, caller: Caller) -> None:
    """The plans must suit large tables as well, although they are made while the tables are small."""
    begun = begin(caller)
    who = begun.who
    append = ConversationAppend(conversation_id="conv_1", read_to=0, is_stored=False)
    change = Change(
        team_id=who.team_id,
        lease=LeaseGuard(response_id=who.response_id, lease_token=1),
        lock=LockGuard(response_id=who.response_id, conversation_id="conv_1"),
        predecessor=PredecessorGuard(response_id=who.response_id, previous_id="resp_1"),
        update=ResponseUpdate(response_id=who.response_id, lease_token=1, status="in_progress"),
        extra=append.at_end(who.response_id, is_failure=False, has_called_tools=True)[1],
        calls=[CallUpdate(response_id=who.response_id, call_id="call_1", status="completed")],
    )
    statements = [statement for statement, _ in store.statements_of([change])][1:]
    statements += [insertion(table, GUARDED) for table in TABLES]
    for statement in statements:
        for scan in scans(statement):
            assert "Index Cond" in scan or "Recheck Cond" in scan, (statement.sql, scan)


# -- poolers -----------------------------------------------------------------------------------------------------------


async def test_a_pooler_may_lose_prepared_statements(
    database: None, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    begun = await abegin(caller)
    numbers = range(2, 10)
    async with pooled(database_conninfo(), servers=2) as pooler:
        through = make_conninfo(database_conninfo(), host="127.0.0.1", port=pooler.port, password="", sslmode="disable")
        commit = GroupCommit(lambda: MarkedWriter(lambda: through))
        with caplog.at_level(logging.WARNING, logger="core.db.statement_pipeline"):
            for number in numbers:
                await commit.submit(batch(begun, number))
        assert pooler.transactions >= len(numbers)
    assert [record.name for record in caplog.records] == ["core.db.statement_pipeline"]
    stored = await in_db_thread(lambda: sequences(begun))
    assert stored[-len(numbers) :] == [*numbers]


async def test_a_statement_is_prepared_once_per_connection(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    async with pooled(database_conninfo(), servers=1) as pooler:
        through = make_conninfo(database_conninfo(), host="127.0.0.1", port=pooler.port, password="", sslmode="disable")
        commit = GroupCommit(lambda: MarkedWriter(lambda: through))
        for number in range(2, 6):
            await commit.submit(batch(begun, number))
    # The settings, the guard, the batch and the mark.
    assert pooler.parses == 4


def sequences(begun: Begun) -> list[int]:
    """Return the first numbers of the stored batches."""
    with scope.team(begun.who.team_id):
        found = EventBatch.objects.filter(response_id=begun.who.response_id).order_by("first_sequence")
        return [*found.values_list("first_sequence", flat=True)]
