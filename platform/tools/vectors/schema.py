"""Database objects that need pgvector: the table of vectors and its indexes.

Not every PostgreSQL server has the extension. The objects are created after each `migrate` that finds it, so it may
also be installed later. Without it everything else works, and requests for vector stores get an error that names the
missing extension.
"""

from typing import Any

from django.db import connections, transaction
from django.db.utils import DatabaseError

from core.db.row_security import row_security_statements
from core.errors import UnsupportedValue

TABLE = "responses_vectorembedding"
INDEXED = (256, 384, 512, 768, 1024, 1536, 2048, 3072)
"""Dimensions of common embedding models.

An HNSW index covers vectors of one dimension. Vectors of other dimensions are always compared one by one."""
_MISSING = (
    "Vector stores need the PostgreSQL extension 'vector' (pgvector 0.8 or newer), which is not installed in this "
    "server's database. An operator can install it and run 'manage.py migrate' again."
)
_TABLE = f"""
CREATE TABLE "{TABLE}" (
    chunk_id bigint PRIMARY KEY REFERENCES "responses_vectorchunk" (id) ON DELETE CASCADE,
    team_id varchar(64) COLLATE "C" NOT NULL,
    store_id varchar(64) COLLATE "C" NOT NULL,
    entry_id bigint NOT NULL,
    dimensions integer NOT NULL CHECK (dimensions > 0),
    embedding halfvec NOT NULL
)
"""


def prepare(using: str, **_: Any) -> None:
    """Create the missing table and indexes, as the owner of the tables; a handler of the signal `post_migrate`."""
    connection = connections[using]
    if _exists(using) or not _has_extension(using):
        return
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute(_TABLE)
        # Keeps vectors inside their rows, up to the size of a page. In a TOAST table each comparison would be a lookup.
        cursor.execute(f'ALTER TABLE "{TABLE}" SET (toast_tuple_target = 8160)')
        cursor.execute(f'ALTER TABLE "{TABLE}" ALTER COLUMN embedding SET STORAGE MAIN')
        cursor.execute(f'CREATE INDEX vector_embedding_by_entry ON "{TABLE}" (store_id, entry_id)')
        for dimensions in INDEXED:
            cursor.execute(index_statement(dimensions))
        for statement in row_security_statements(TABLE):
            cursor.execute(statement)


def index_statement(dimensions: int) -> str:
    """Return the SQL statement that creates the HNSW index for vectors of these dimensions."""
    return (
        f'CREATE INDEX vector_embedding_hnsw_{dimensions} ON "{TABLE}" '
        f"USING hnsw ((embedding::halfvec({dimensions})) halfvec_cosine_ops) WHERE dimensions = {dimensions}"
    )


def _has_extension(using: str) -> bool:
    """Return True if pgvector is installed and new enough. Installs it if the database role may."""
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT coalesce(installed_version, default_version) FROM pg_available_extensions WHERE name = 'vector'"
            )
            found = cursor.fetchone()
            if found is None or not is_new_enough(found[0]):
                return False
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except DatabaseError:
        # Installing an extension may take a superuser.
        return False
    return True


def is_new_enough(version: str) -> bool:
    """Return True for version 0.8 or newer of pgvector. Older ones lack iterative index scans."""
    # Distributions ship older versions, which must not break `migrate`.
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return numbers >= [0, 8]


def _exists(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [TABLE])
        return bool(cursor.fetchone()[0])


def require_vectors() -> None:
    """Raise UnsupportedValue if the database has no pgvector."""
    if not _exists("default"):
        raise UnsupportedValue(_MISSING)
