"""Migrations after the first of each app leave the previous version working and lock no table for long."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import connections, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

pytestmark = pytest.mark.usefixtures("database")
APPS = {"conversations", "containers", "idempotency", "responses", "skills", "tenants"}
RULES = {
    r"\bDROP DEFAULT\b": "The previous version inserts rows without the column: use db_default instead of default.",
    r"\bADD COLUMN (?:(?!\bDEFAULT\b).)*NOT NULL": "A new column needs a default of the database (db_default) or null.",
    r"\bSET NOT NULL\b": "Required columns need a constraint that is NOT VALID first, and validated later.",
    r"\bDROP (COLUMN|TABLE)\b": "The previous version still uses it: drop it one release after the code stops.",
    r"\bRENAME (TO|COLUMN)\b": "The previous version still uses the old name: add a new one.",
    r"\bALTER COLUMN \S+ TYPE\b": "Changing a type may rewrite the table: add a new column.",
    r"^CREATE (UNIQUE )?INDEX (?!CONCURRENTLY)": "Use AddIndexConcurrently, in a migration that is not atomic.",
    r"\bADD CONSTRAINT (?!.*NOT VALID)": "Add the constraint NOT VALID, and validate it in a second migration.",
}
# Reviewed migrations, with the reason why they may break a rule.
ACCEPTED = {
    ("responses", "0010_tool_hour_status"): "A longer varchar rewrites nothing.",
    ("tenants", "0013_target_limits"): "A longer varchar rewrites nothing, and operators enter a few rows.",
    ("responses", "0008_unknown_outcomes"): "PostgreSQL does not rewrite a table for a longer varchar.",
}


def defects(migration: migrations.Migration, state: ProjectState) -> Iterator[str]:
    """Yield the rules that the SQL of a migration breaks. The rules do not apply to new tables."""
    with connections["owner"].schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
        migration.apply(state, editor, collect_sql=True)
    statements = [line for line in editor.collected_sql if not line.startswith("--")]
    created = set(re.findall(r'^CREATE TABLE ("\w+")', "\n".join(statements), re.MULTILINE))
    for statement in statements:
        for pattern, advice in RULES.items():
            if re.search(pattern, statement) and not any(table in statement for table in created):
                yield f"{statement}\n{advice}"


@pytest.mark.slow
def test_later_migrations_follow_the_rules() -> None:
    loader = MigrationLoader(connections["owner"])
    for key in loader.graph.nodes:
        if key[0] in APPS and not loader.disk_migrations[key].initial and key not in ACCEPTED:
            state = loader.project_state(tuple(loader.disk_migrations[key].dependencies))
            assert list(defects(loader.disk_migrations[key], state)) == [], ".".join(key)


def checked(*operations: Operation, atomic: bool = True) -> str:
    """Return the defects of a migration applied after those of the project, as one text."""
    kind = type("Migration", (migrations.Migration,), {"operations": list(operations), "atomic": atomic})
    migration: migrations.Migration = kind("next", "tenants")
    return "\n".join(defects(migration, MigrationLoader(connections["owner"]).project_state()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "advice"),
    [
        (migrations.AddField("team", "color", models.TextField(default="red")), "db_default"),
        (migrations.RemoveField("team", "name"), "one release after"),
        (migrations.RenameField("team", "name", "title"), "add a new one"),
        (migrations.DeleteModel("adminkey"), "one release after"),
        (migrations.AlterField("apikey", "last_four", models.IntegerField()), "add a new column"),
        (migrations.AddIndex("team", models.Index(fields=["name"], name="by_name")), "AddIndexConcurrently"),
        (
            migrations.AddConstraint("team", models.CheckConstraint(condition=models.Q(name="a"), name="only_a")),
            "NOT VALID",
        ),
        (migrations.RunSQL("ALTER TABLE tenants_team ALTER COLUMN name SET NOT NULL"), "NOT VALID"),
    ],
    ids=["add", "remove", "rename", "delete", "type", "index", "constraint", "not null"],
)
def test_a_migration_that_breaks_a_rule_is_found(operation: Operation, advice: str) -> None:
    assert advice in checked(operation)


@pytest.mark.slow
def test_safe_migrations_have_no_defects() -> None:
    assert checked(migrations.AddField("team", "color", models.TextField(null=True))) == ""
    assert checked(migrations.AddField("team", "size", models.IntegerField(db_default=1))) == ""
    index = models.Index(fields=["name"], name="by_name")
    assert checked(AddIndexConcurrently("team", index), atomic=False) == ""
    fields: list[tuple[str, models.Field[Any, Any]]] = [
        ("id", models.BigAutoField(primary_key=True)),
        ("name", models.TextField(unique=True, db_index=True)),
    ]
    assert checked(migrations.CreateModel("colour", fields)) == ""
