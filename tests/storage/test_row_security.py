"""Row-level security: every tenant table shows only rows of the teams that the transaction names.

The tables are read from the database, so that a new table is tested without being listed here. Rows are created by
filling the required fields of each model.
"""

import uuid
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import ProgrammingError, connection, models, transaction

from core.clock import now
from responses.models.vector_stores import HalfVectorField
from tenants import scope
from tenants.models import Team
from tests.support.api import MakeCaller

Model = type[models.Model]
APPS = ("tenants", "conversations", "idempotency", "skills", "containers", "responses")
GLOBAL = {
    "tenants_upstream",
    "tenants_model",
    "tenants_modelkey",
    "tenants_connector",
    "tenants_searchengine",
    "responses_commitmark",
    "responses_rollupmark",
    "responses_searchmark",
    "tenants_staffmember",
    "tenants_listcolumns",
    "tenants_auditseal",
    "tenants_lastbackup",
    "tenants_budgetcheck",
    "tenants_price",
    "tenants_adminkey",
    "tenants_invite",
}
"""Tables of the operator's and of the platform's own: no team owns their rows."""
APPEND_ONLY = {"tenants_auditevent"}
"""Tables whose rows the application's role may not change at all."""
_DENIED = "permission denied"
CONSTRAINED: dict[str, dict[str, Any]] = {
    "conversations_file": {"sweep_at": now() + timedelta(days=1)},
    "tenants_searchengine": {"base_url": "http://127.0.0.1"},
}
"""What a table's constraints demand beside its required fields."""


def owner_column(model: Model) -> str | None:
    """Return the column that names the team of a row."""
    if model is Team:
        return "id"
    return next((field.column for field in model._meta.concrete_fields if field.column == "team_id"), None)


MODELS = [model for model in apps.get_models() if model._meta.app_label in APPS and owner_column(model)]
each_table = pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.db_table)


def query(sql: str, *parameters: Any) -> list[Any]:
    """Return the rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def make_row(model: Model, team: Team) -> models.Model:
    """Create a row of this team, with values for all required fields."""
    if model is Team:
        return team
    fields = [field for field in model._meta.concrete_fields if needs_value(field)]
    values = {field.name: value_for(field, team) for field in fields}
    return model._default_manager.create(**values, **CONSTRAINED.get(model._meta.db_table, {}))


def needs_value(field: "models.Field[Any, Any]") -> bool:
    """Return whether the field is required."""
    given = field.has_default() or isinstance(field, models.AutoField | models.BigAutoField)
    return not (given or field.null) or field.column == "team_id"


def value_for(field: "models.Field[Any, Any]", team: Team) -> Any:
    """Return some valid value."""
    if isinstance(field, models.ForeignKey):
        related: Any = field.remote_field.model
        if related is User:
            return User.objects.create_user(uuid.uuid4().hex)
        return make_row(related, team)
    if field.column == "team_id":
        return team.pk
    if field.choices:
        return next(iter(field.choices))[0]
    values: dict[type[Any], Callable[[], Any]] = {
        models.BooleanField: lambda: True,
        models.IntegerField: lambda: 1,
        models.DecimalField: lambda: 1,
        models.DateTimeField: now,
        models.BinaryField: lambda: b"x",
        models.URLField: lambda: "http://localhost/v1",
        models.JSONField: dict,
        HalfVectorField: lambda: [0.6, 0.8],
    }
    made = next((value() for kind, value in values.items() if isinstance(field, kind)), None)
    return uuid.uuid4().hex[: field.max_length or 32] if made is None else made


def partitions() -> set[str]:
    """Return the partitions of all tables."""
    return {name for (name,) in query("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")}


def tenant_tables() -> set[str]:
    """Return the tables with a team in each row, and their partitions, according to the database."""
    columns = query(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'team_id'"
    )
    return {name for (name,) in columns} | {"tenants_team"}


def written_columns(table: str) -> list[str]:
    """Return the columns of a table, without generated ones."""
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND is_generated = 'NEVER'"
    return [name for (name,) in query(columns, table)]


@pytest.fixture
def teams(make_caller: MakeCaller) -> tuple[Team, Team]:
    """Two teams: the own one and another."""
    return make_caller().team, make_caller().team


@pytest.fixture
def rows(teams: tuple[Team, Team], model: Model) -> tuple[models.Model, models.Model]:
    """A row of each team in the tested table."""
    made = []
    for team in teams:
        with scope.team(team.pk):
            made.append(make_row(model, team))
    return made[0], made[1]


# -- the policies of each table ----------------------------------------------------------------------------------------


def test_every_table_has_a_team_column_or_is_listed_as_global(database: None) -> None:
    ours = {model._meta.db_table for model in apps.get_models() if model._meta.app_label in APPS}
    assert ours - {model._meta.db_table for model in MODELS} == GLOBAL
    assert {model._meta.db_table for model in MODELS} == tenant_tables() - partitions()


def test_row_security_applies_to_the_owner_of_every_tenant_table(database: None) -> None:
    locked = query("SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity")
    assert {name for (name,) in locked} == tenant_tables()


def test_every_tenant_table_has_one_policy_for_reads_and_writes(database: None) -> None:
    policies = query(
        "SELECT tablename, policyname, permissive, roles::text, cmd, qual = with_check, "
        "qual LIKE '%%string_to_array(current_setting(''app.team_ids''%%' FROM pg_policies"
    )
    found = {table: tuple(rest) for table, *rest in policies}
    assert len(policies) == len(found)
    assert found == dict.fromkeys(tenant_tables(), ("team", "PERMISSIVE", "{public}", "ALL", True, True))


def test_row_security_binds_the_role_of_the_application(database: None) -> None:
    assert query(
        "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = current_user"
    ) == [(False, False, False, False)]
    owned = "SELECT relname FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner WHERE rolname = current_user"
    assert query(owned) == []
    assert query("SELECT 1 FROM pg_auth_members WHERE member = current_user::regrole") == []


# -- the rows that a transaction sees ----------------------------------------------------------------------------------


@each_table
def test_no_rows_are_visible_without_a_team(
    database: None, model: Model, rows: tuple[models.Model, models.Model]
) -> None:
    with scope.every_team():
        assert model._default_manager.filter(pk__in=[row.pk for row in rows]).count() == 2
    assert not model._default_manager.exists()
    with transaction.atomic():
        assert query(f'SELECT count(*) FROM "{model._meta.db_table}"') == [(0,)]


@each_table
def test_a_team_sees_only_its_own_rows(
    database: None, model: Model, rows: tuple[models.Model, models.Model], teams: tuple[Team, Team]
) -> None:
    with scope.team(teams[0].pk):
        visible_teams = query(f'SELECT DISTINCT {owner_column(model)} FROM "{model._meta.db_table}"')
        assert visible_teams == [(teams[0].pk,)]
        assert model._default_manager.filter(pk=rows[0].pk).exists()


@each_table
def test_rows_of_other_teams_cannot_be_changed_or_deleted(
    database: None, model: Model, rows: tuple[models.Model, models.Model], teams: tuple[Team, Team]
) -> None:
    table, column = model._meta.db_table, owner_column(model)
    for change in (f'UPDATE "{table}" SET {column} = {column}', f'DELETE FROM "{table}"'):
        allowed = pytest.raises(ProgrammingError, match=_DENIED) if table in APPEND_ONLY else nullcontext()
        with allowed, scope.team(teams[0].pk), connection.cursor() as cursor:
            cursor.execute(f"{change} WHERE {column} = %s", [teams[1].pk])
            assert cursor.rowcount == 0
    with scope.every_team():
        assert model._default_manager.filter(pk=rows[1].pk).exists()


@each_table
def test_a_row_cannot_be_written_for_another_team(
    database: None, model: Model, rows: tuple[models.Model, models.Model], teams: tuple[Team, Team]
) -> None:
    table, column = model._meta.db_table, owner_column(model)
    with scope.team(teams[1].pk):
        ((row,),) = query(f'SELECT to_jsonb(t)::text FROM "{table}" AS t WHERE {column} = %s LIMIT 1', teams[1].pk)
    written = ", ".join(f'"{name}"' for name in written_columns(table))
    record = f'jsonb_populate_record(NULL::"{table}", %s::jsonb)'
    insert = f'INSERT INTO "{table}" ({written}) SELECT {written} FROM {record}'
    with pytest.raises(ProgrammingError, match="row-level security"), scope.team(teams[0].pk):
        query(insert, row)


@each_table
def test_a_row_cannot_be_moved_to_another_team(
    database: None, model: Model, rows: tuple[models.Model, models.Model], teams: tuple[Team, Team]
) -> None:
    table, column = model._meta.db_table, owner_column(model)
    give = f'UPDATE "{table}" SET {column} = %s WHERE {column} = %s'
    refusal = _DENIED if table in APPEND_ONLY else "row-level security"
    with pytest.raises(ProgrammingError, match=refusal), scope.team(teams[0].pk):
        query(give, teams[1].pk, teams[0].pk)


# -- scopes ------------------------------------------------------------------------------------------------------------


def visible_teams() -> set[str]:
    """Return the teams that the current transaction sees."""
    return set(Team.objects.values_list("pk", flat=True))


def test_a_scope_ends_with_its_transaction(database: None, teams: tuple[Team, Team]) -> None:
    with scope.team(teams[0].pk):
        assert visible_teams() == {teams[0].pk}
    assert visible_teams() == set()


def test_a_scope_of_several_teams_sees_each_of_them(database: None, teams: tuple[Team, Team]) -> None:
    mine, other = teams
    with scope.team(mine.pk, other.pk):
        assert visible_teams() == {mine.pk, other.pk}


def test_a_scope_of_no_team_sees_nothing(database: None, teams: tuple[Team, Team]) -> None:
    with scope.team():
        assert visible_teams() == set()


def test_a_nested_wider_scope_restores_the_narrow_one(database: None, teams: tuple[Team, Team]) -> None:
    mine, other = teams
    with scope.team(mine.pk):
        with scope.every_team():
            assert visible_teams() >= {mine.pk, other.pk}
        assert visible_teams() == {mine.pk}


def test_a_nested_narrower_scope_restores_the_wide_one(database: None, teams: tuple[Team, Team]) -> None:
    mine, other = teams
    with scope.every_team():
        with scope.team(mine.pk):
            assert visible_teams() == {mine.pk}
        assert visible_teams() >= {mine.pk, other.pk}


def test_a_failing_scope_restores_the_outer_one(database: None, teams: tuple[Team, Team]) -> None:
    mine, _ = teams
    with scope.team(mine.pk):
        with pytest.raises(ZeroDivisionError), scope.every_team():
            _ = 1 / 0
        assert visible_teams() == {mine.pk}


def test_an_exception_inside_a_scope_rolls_back(database: None, teams: tuple[Team, Team]) -> None:
    mine, _ = teams

    def change_and_break() -> None:
        with scope.team(mine.pk):
            Team.objects.filter(pk=mine.pk).update(log_retention_hours=1)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        change_and_break()
    with scope.team(mine.pk):
        assert Team.objects.get().log_retention_hours != 1
