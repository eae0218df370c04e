"""The only door through row-level security: which teams the current transaction may see.

Nothing outside these two context managers (and the group-committed writer, which names the teams of its batch) opens a
tenant table. Both begin a transaction, since the setting lives and dies with one. One inside of another gives back on
its way out what the outer one saw, be that less or more.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from kernel.row_security import EVERY_TEAM, open_to, visible_teams


@contextmanager
def team(*team_ids: str, using: str = "default") -> Iterator[None]:
    """A transaction that sees the rows of these teams and no others."""
    with _opened(team_ids, using=using):
        yield


@contextmanager
def every_team(*, using: str = "default") -> Iterator[None]:
    """A transaction that sees all teams: key look-up, sweepers and the cross-team admin."""
    with _opened([EVERY_TEAM], using=using):
        yield


@contextmanager
def _opened(team_ids: Iterable[str], *, using: str) -> Iterator[None]:
    connection = connections[using]
    outer = visible_teams(using=using) if connection.in_atomic_block else None
    with transaction.atomic(using=using):
        open_to(team_ids, using=using)
        yield
        # PostgreSQL does so itself when the inner transaction is rolled back.
        if outer is not None and not connection.needs_rollback:
            open_to(outer, using=using)
