"""Re-encryption of everything in the database that is encrypted with ENCRYPTION_KEYS, with the first of the keys.

A value is replaced only if it is still the one that was read, so processes may write at the same time. Values that the
first key decrypts are left alone, so an interrupted rotation is simply repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from allauth.mfa.models import Authenticator
from django.apps import apps
from django.db import connection, models
from django.db.backends.utils import CursorWrapper

from conversations.models import Item
from core import crypto
from core.crypto import EncryptedTextField
from responses.models import Response
from responses.requests import encrypted_content
from tenants import scope, sign_in
from tools.mcp import request as mcp_request

_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedColumn:
    """A column with encrypted values. `module` encrypts them.

    `paths` are the keys of a JSON column that have the values; without them, the whole column is one. `only` limits the
    rows by columns and their values. With `keeps_foreign`, values that no key decrypts are expected: others have
    encrypted them.
    """

    model: type[models.Model]
    column: str
    module: str
    paths: tuple[str, ...] = ()
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keeps_foreign: bool = False

    @property
    def name(self) -> str:
        """The table and the column."""
        return f"{self.model._meta.db_table}.{self.column}"  # noqa: SLF001 - Django's documented API


@dataclass(slots=True, kw_only=True)
class Rotation:
    """Numbers of the values of a column: rotated, encrypted with the first key before, and decrypted by no key."""

    column: str
    rotated: int = 0
    current: int = 0
    undecryptable: int = 0


def columns() -> list[EncryptedColumn]:
    """Return all encrypted columns. Fields of the type `EncryptedTextField` are found in the models."""
    fields = [
        EncryptedColumn(model=model, column=str(field.column), module=crypto.__name__)
        for model in apps.get_models()
        for field in model._meta.concrete_fields  # noqa: SLF001 - Django's documented API
        if isinstance(field, EncryptedTextField)
    ]
    return [
        *fields,
        # Erased when a run ends.
        EncryptedColumn(
            model=Response,
            column="secrets",
            module=mcp_request.__name__,
            only=(("status", ("queued", "in_progress")),),
        ),
        EncryptedColumn(model=Authenticator, column="data", module=sign_in.__name__, paths=("secret", "seed")),
        # Clients may send content of upstreams, which is stored as it is.
        EncryptedColumn(
            model=Item,
            column="body",
            module=encrypted_content.__name__,
            paths=("encrypted_content",),
            only=(("type", encrypted_content.ITEM_TYPES),),
            keeps_foreign=True,
        ),
    ]


def rotate(*, dry_run: bool = False, batch: int = _BATCH) -> Iterator[Rotation]:
    """Re-encrypt all columns, `batch` rows at a time, and yield the result of each. With `dry_run`, only count."""
    for column in columns():
        result = Rotation(column=column.name)
        after: Any = None
        while True:
            # A transaction for each batch: locks are held for a short time, and what was done remains.
            with scope.every_team(), connection.cursor() as cursor:
                rows = _read(cursor, column, after, batch)
                for row in rows:
                    _rotate_row(cursor, column, row, result, dry_run=dry_run)
            if len(rows) < batch:
                break
            after = rows[-1][0]
        yield result


def _read(cursor: CursorWrapper, column: EncryptedColumn, after: Any, batch: int) -> list[tuple[Any, str | None, str]]:
    meta = column.model._meta  # noqa: SLF001 - Django's documented API
    key = _quoted(str(meta.pk.column))
    name = _quoted(column.column)
    is_of_team = any(field.column == "team_id" for field in meta.concrete_fields)
    conditions, values = [f"{name}::text <> ''"], list[Any]()
    for limited, allowed in column.only:
        conditions.append(f"{_quoted(limited)} = ANY(%s)")
        values.append([*allowed])
    if after is not None:
        conditions.append(f"{key} > %s")
        values.append(after)
    cursor.execute(
        f"SELECT {key}, {'team_id' if is_of_team else repr('')}, {name}::text FROM {_quoted(meta.db_table)}"  # noqa: S608 - names of models
        f" WHERE {' AND '.join(conditions)} ORDER BY {key} LIMIT {batch:d}",
        values,
    )
    rows: list[tuple[Any, str | None, str]] = cursor.fetchall()
    return rows


def _rotate_row(
    cursor: CursorWrapper,
    column: EncryptedColumn,
    row: tuple[Any, str | None, str],
    result: Rotation,
    *,
    dry_run: bool,
) -> None:
    key, team_id, text = row
    for token in _tokens(column, text):
        try:
            rotated = _rotated(column, token, team_id or "")
        except crypto.InvalidToken:
            result.undecryptable += not column.keeps_foreign
            continue
        if rotated is None:
            result.current += 1
        elif dry_run or _replace(cursor, column, key, token, rotated):
            result.rotated += 1


def _tokens(column: EncryptedColumn, text: str) -> list[str]:
    if not column.paths:
        return [text]
    held = orjson.loads(text)
    return [held[path] for path in column.paths if isinstance(held.get(path), str) and held[path]]


def _rotated(column: EncryptedColumn, token: str, team_id: str) -> str | None:
    if column.module == encrypted_content.__name__:
        return encrypted_content.rotate(token, team_id=team_id)
    return crypto.rotate(token)


def _replace(cursor: CursorWrapper, column: EncryptedColumn, key: Any, token: str, rotated: str) -> bool:
    """Replace a value unless it has changed. Tokens contain no characters that JSON escapes."""
    meta = column.model._meta  # noqa: SLF001 - Django's documented API
    name = _quoted(column.column)
    kind = next(field for field in meta.concrete_fields if field.column == column.column).db_type(connection)
    cursor.execute(
        f"UPDATE {_quoted(meta.db_table)} SET {name} = replace({name}::text, %s, %s)::{kind}"  # noqa: S608 - names of models
        f" WHERE {_quoted(str(meta.pk.column))} = %s AND strpos({name}::text, %s) > 0",
        [token, rotated, key, token],
    )
    return bool(cursor.rowcount)


def _quoted(name: str) -> str:
    return connection.ops.quote_name(name)
