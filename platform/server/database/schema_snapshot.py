"""The schema snapshot: an SQL file that creates what all migrations create, in a fraction of the time.

`manage.py migrate` loads it into an empty database; `manage.py dump_schema` writes it. It is valid for the migrations
and the major version of PostgreSQL that it names, and ignored for all others.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader

from core.db import partitions, row_security
from tools.vectors import schema as vector_schema

PATH = Path(__file__).with_name("schema.sql")
COMMAND = "python3 manage.py dump_schema"
# Variables of the file, in psql's notation. The names of the roles differ between installations.
_APPLICATION = ':"application"'
_EXTENSIONS = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
# Objects of extensions do not count, because the extensions are installed before the first migration.
_IS_EMPTY = """
SELECT current_schema() = 'public' AND NOT EXISTS (
    SELECT FROM pg_class c WHERE relnamespace = 'public'::regnamespace
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
)
"""


def fingerprint() -> str:
    """Return a hash of everything that determines the schema: all migrations and the code that they call."""
    modules = {type(migration).__module__ for migration in MigrationLoader(None).disk_migrations.values()}
    modules |= {partitions.__name__, row_security.__name__, vector_schema.__name__}
    digest = hashlib.sha256()
    for name in sorted(modules):
        digest.update(name.encode() + Path(str(sys.modules[name].__file__)).read_bytes())
    return digest.hexdigest()


def is_empty(*, using: str) -> bool:
    """Return true if the database has no tables yet."""
    return bool(_value(using, _IS_EMPTY))


def load(*, using: str, file: Path = PATH) -> bool:
    """Create the schema in an empty database, as the owner of the tables.

    Return false, with nothing changed, if the file does not fit: other migrations, another version of PostgreSQL, or a
    database without pgvector.
    """
    text = file.read_text() if file.exists() else ""
    if not text.startswith(_header(using)) or not is_empty(using=using):
        return False
    vector = _value(using, _EXTENSIONS)
    if vector is None or not vector_schema.is_new_enough(vector):
        return False
    role = settings.DATABASES["default"]["USER"]
    if role == connections[using].settings_dict["USER"]:
        # The same exception as in `core.db.row_security`: an owner needs no rights on its own tables.
        text = "\n".join(line for line in text.splitlines() if _APPLICATION not in line)
    text = text.replace(_APPLICATION, connections[using].ops.quote_name(role))
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SET LOCAL search_path = ''")
        cursor.execute("SET LOCAL check_function_bodies = off")
        cursor.execute(text)
    return True


def dump(*, using: str, pg_dump: str, rows: bool = True) -> str:
    """Return the snapshot of a migrated database, with its rows if `rows`. `pg_dump` is the path of that program."""
    database = connections[using].settings_dict
    options = ["--no-owner", "--no-comments", "--no-tablespaces", "--no-table-access-method", "--enable-row-security"]
    options += ["--column-inserts", "--rows-per-insert=1000"] if rows else ["--schema-only"]
    # Partitions by month are created when the database is used.
    options += ["--exclude-table=*_y????m??"]
    place = [
        f"--{option}={database[key]}" for option, key in (("host", "HOST"), ("port", "PORT"), ("username", "USER"))
    ]
    done = subprocess.run(
        [pg_dump, *options, *place, str(database["NAME"])],
        env={"PGPASSWORD": str(database["PASSWORD"])},
        capture_output=True,
        text=True,
        check=True,
    )
    role = re.escape(settings.DATABASES["default"]["USER"])
    text = done.stdout
    for pattern, replacement in (
        (r"^--.*\n", ""),
        (r"^\\.*\n", ""),  # commands of psql
        (r"^(SET |SELECT pg_catalog\.set_config|CREATE EXTENSION |(GRANT|REVOKE) .* ON SCHEMA ).*\n", ""),
        # The times at which the migrations were applied.
        (r"'[\d-]+ [\d:.]+\+00'", "now()"),
        (r"(?<= TO )\"?" + role + r"\"?(?=;$)", _APPLICATION),
        # The owner of the tables loads the file, and these are its own default privileges.
        (r"^(ALTER DEFAULT PRIVILEGES) FOR ROLE \S+", r"\1"),
        (r"\n{2,}", "\n\n"),
    ):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return _header(using) + text.strip() + "\n"


def _header(using: str) -> str:
    version = int(_value(using, "SHOW server_version_num")) // 10_000
    return (
        f"-- The schema after all migrations, for an empty database. Written by `{COMMAND}`; do not edit.\n"
        f"-- PostgreSQL {version}, migrations {fingerprint()}\n\n"
    )


def _value(using: str, query: str) -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return row and row[0]
