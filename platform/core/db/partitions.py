"""Tables that are partitioned by month (UTC): old rows are dropped as a whole table instead of one by one.

A partition is named after its table and month, such as `responses_turn_y2026m11`. Rows of other months, and of months
whose partition could not be created in time, are in the partition `…_default`, so no write ever fails. The role of the
application may not create tables: it calls two functions that run with the rights of the owner, and accept only such
names.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connections, transaction
from django.db.migrations.operations import CreateModel, RunPython, RunSQL
from django.db.migrations.operations.base import Operation
from typing_extensions import override

from core.db.row_security import row_security_statements

logger = logging.getLogger(__name__)
MONTHS_AHEAD = 3
"""Number of months whose partitions are created, from the current one on."""
_NAME = re.compile(r"_y(\d{4})m(\d{2})$")
# A statement that waits for a lock blocks the writers behind it, so the functions give up soon. The caller tries again.
#
# A new partition is filled before it is attached: attaching takes no lock on the table that readers or writers would
# wait for, except on the default partition, which is normally empty.
_FUNCTIONS = (
    r"""
CREATE FUNCTION create_partition(parent text, name text, lowest text, beyond text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    teams text := coalesce(current_setting('app.team_ids', true), '');
    key name;
    policy record;
BEGIN
    SELECT attname INTO key FROM pg_partitioned_table
    JOIN pg_attribute ON attrelid = partrelid AND attnum = partattrs[0] WHERE partrelid = to_regclass(parent);
    IF key IS NULL OR name !~ ('^' || parent || '_y\d{4}m\d{2}$') THEN
        RAISE EXCEPTION 'not a partition by month: %', name;
    END IF;
    IF to_regclass(name) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL EXCLUDING IDENTITY)', name, parent);
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    FOR policy IN
        SELECT polname, pg_get_expr(polqual, polrelid) AS shown, pg_get_expr(polwithcheck, polrelid) AS written
        FROM pg_policy WHERE polrelid = to_regclass(parent)
    LOOP
        EXECUTE format('CREATE POLICY %I ON %I USING (%s) WITH CHECK (%s)',
            policy.polname, name, policy.shown, policy.written);
    END LOOP;
    PERFORM set_config('app.team_ids', '*', true);
    EXECUTE format('WITH moved AS (DELETE FROM %I WHERE %I >= %L AND %I < %L RETURNING *) '
        'INSERT INTO %I SELECT * FROM moved', parent || '_default', key, lowest, key, beyond, name);
    PERFORM set_config('app.team_ids', teams, true);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, name, lowest, beyond);
    RETURN true;
END $$
""",
    r"""
CREATE FUNCTION drop_partition(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    IF name !~ '_y\d{4}m\d{2}$' OR NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(name)) THEN
        RAISE EXCEPTION 'not a partition by month: %', name;
    END IF;
    EXECUTE format('DROP TABLE %I', name);
    RETURN true;
END $$
""",
)
_SIGNATURES = ("create_partition(text, text, text, text)", "drop_partition(text)")
_PARTITIONS = """
SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
WHERE inhparent = to_regclass(%s) ORDER BY child.relname
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyTable:
    """A partitioned table. `lowest` returns the smallest value of the partition key in a month."""

    name: str
    lowest: Callable[[datetime], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The partition of a table for the month that begins at `month`."""

    name: str
    month: datetime


def month_of(at: datetime, *, later: int = 0) -> datetime:
    """Return the beginning of the month (UTC) of a time, or of the month that is `later` months after it."""
    at = at.astimezone(UTC)
    years, month = divmod(at.month - 1 + later, 12)
    return datetime(at.year + years, month + 1, 1, tzinfo=UTC)


def create_ahead(tables: Sequence[MonthlyTable], *, at: datetime, using: str = "default") -> int:
    """Create the missing partitions of `MONTHS_AHEAD` months from the current one on. Return the number created."""
    created = 0
    for table in tables:
        for later in range(MONTHS_AHEAD):
            month, following = month_of(at, later=later), month_of(at, later=later + 1)
            values = [table.name, f"{table.name}_y{month:%Ym%m}", table.lowest(month), table.lowest(following)]
            created += _call("SELECT create_partition(%s, %s, %s, %s)", values, using=using)
    return created


def partitions(table: MonthlyTable, *, using: str = "default") -> list[Partition]:
    """Return the partitions of a table by month, oldest first, without the default one."""
    with connections[using].cursor() as cursor:
        cursor.execute(_PARTITIONS, [table.name])
        names = [(name, _NAME.search(name)) for (name,) in cursor.fetchall()]
    return [
        Partition(name=name, month=datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC))
        for name, match in names
        if match
    ]


def drop(partition: Partition, *, using: str = "default") -> bool:
    """Drop a partition with its rows. Return False if it is in use; then try again later."""
    return _call("SELECT drop_partition(%s)", [partition.name], using=using)


def _call(sql: str, values: list[str], *, using: str) -> bool:
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(sql, values)
            return bool(cursor.fetchone()[0])
    except DatabaseError:
        # The next call tries again. Until then rows of a missing partition are in the default one.
        logger.warning("a partition could not be created or dropped", extra={"partition": values}, exc_info=True)
        return False


# -- migrations --------------------------------------------------------------------------------------------------------


def create_functions() -> list[Operation]:
    """Return the migration operations that create the functions and let the application's role call them."""
    revoke = [f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC" for signature in _SIGNATURES]
    drops = [f"DROP FUNCTION {signature}" for signature in _SIGNATURES]
    return [RunSQL((*_FUNCTIONS, *revoke), tuple(drops)), RunPython(_grant, RunPython.noop)]


def _grant(_: Any, editor: Any) -> None:
    role = settings.DATABASES["default"]["USER"]
    # The same exception as in `core.db.row_security`: an owner needs no rights on its own functions.
    if role != editor.connection.settings_dict["USER"]:
        for signature in _SIGNATURES:
            editor.execute(f"GRANT EXECUTE ON FUNCTION {signature} TO {editor.quote_name(role)}")


class CreateMonthlyTable(CreateModel):
    """Migration operation that creates a model's table partitioned by a column, with a default partition.

    `primary_key` names the columns of the database's primary key if they differ from Django's: the database requires
    that they include the partition key, but Django's admin requires a key of one column.
    """

    def __init__(self, *arguments: Any, partition_by: str, primary_key: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.partition_by, self.primary_key = partition_by, primary_key

    @override
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        table_sql = schema_editor.table_sql

        def partitioned(model: Any) -> tuple[str, Any]:
            sql, parameters = table_sql(model)
            if self.primary_key:
                sql = (
                    sql.replace(" PRIMARY KEY", "", 1).removesuffix(")")
                    + f", PRIMARY KEY ({', '.join(self.primary_key)}))"
                )
            return f"{sql} PARTITION BY RANGE ({self.partition_by})", parameters

        schema_editor.table_sql = partitioned
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            del schema_editor.table_sql
        table = to_state.apps.get_model(app_label, self.name)._meta.db_table  # noqa: SLF001 - Django's documented API
        for statement in (
            f'CREATE TABLE "{table}_default" PARTITION OF "{table}" DEFAULT',
            *row_security_statements(f"{table}_default"),
        ):
            schema_editor.execute(statement)
