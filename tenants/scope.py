"""Row-level security: the teams whose rows the current transaction may see.

Only these two context managers, and the group-committed writer for the teams of its batch, make rows of tenants
visible. Both context managers open a transaction, because the setting is local to a transaction. A nested scope
restores the outer setting when it ends.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from django.db import connections, transaction

from core.db.row_security import EVERY_TEAM, open_to, visible_teams


@contextmanager
def team(*team_ids: str, using: str = "default") -> Iterator[None]:
    """Open a transaction that sees only the rows of these teams."""
    connection = connections[using]
    outer = visible_teams(using=using) if connection.in_atomic_block else None
    with transaction.atomic(using=using):
        open_to(team_ids, using=using)
        yield
        # After a rollback to the savepoint, PostgreSQL has restored the setting itself.
        if outer is not None and not connection.needs_rollback:
            open_to(outer, using=using)


def every_team(*, using: str = "default") -> AbstractContextManager[None]:
    """Open a transaction that sees all teams, for key lookups, sweeps and staff."""
    return team(EVERY_TEAM, using=using)
