"""The part of the database that needs pgvector, which not every PostgreSQL has: the table of vectors and its indexes.

It is made after every `migrate` that finds the extension, so that one which is installed later is found, too. Without
it everything else works, and vector stores answer what is missing.
"""

from typing import Any

from django.db import connections, transaction
from django.db.utils import DatabaseError

from kernel.errors import UnsupportedValue
from kernel.row_security import row_security_statements

TABLE = "responses_vectorembedding"
INDEXED = (256, 384, 512, 768, 1024, 1536, 2048, 3072)
"""Dimensions of the usual models. An HNSW index is of one dimension; vectors of others are always compared one by
one."""
_MISSING = (
    "Vector stores need PostgreSQL's extension 'vector' (pgvector 0.8 or newer), which this server's database has not "
    "got. Its operator can install it and run 'manage.py migrate' again."
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
    """Make what is missing, as the owner of the tables; for Django's signal `post_migrate`."""
    connection = connections[using]
    if _exists(using) or not _has_extension(using):
        return
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute(_TABLE)
        # Vectors lie in their rows up to the size of a page: comparing must not look for each of them elsewhere.
        cursor.execute(f'ALTER TABLE "{TABLE}" SET (toast_tuple_target = 8160)')
        cursor.execute(f'ALTER TABLE "{TABLE}" ALTER COLUMN embedding SET STORAGE MAIN')
        cursor.execute(f'CREATE INDEX vector_embedding_by_entry ON "{TABLE}" (store_id, entry_id)')
        for dimensions in INDEXED:
            cursor.execute(index_statement(dimensions))
        for statement in row_security_statements(TABLE):
            cursor.execute(statement)


def index_statement(dimensions: int) -> str:
    """The statement that makes the HNSW index of these dimensions."""
    return (
        f'CREATE INDEX vector_embedding_hnsw_{dimensions} ON "{TABLE}" '
        f"USING hnsw ((embedding::halfvec({dimensions})) halfvec_cosine_ops) WHERE dimensions = {dimensions}"
    )


def _has_extension(using: str) -> bool:
    """Whether pgvector is there; where the owner may, it is installed."""
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
        return False  # only a superuser may
    return True


def is_new_enough(version: str) -> bool:
    """Whether a pgvector has all that is needed; distributions keep older ones, which must not break `migrate`."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return numbers >= [0, 8]


def _exists(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [TABLE])
        return bool(cursor.fetchone()[0])


def require_vectors() -> None:
    """Raise the 400 of a database without pgvector."""
    if not _exists("default"):
        raise UnsupportedValue(_MISSING)
