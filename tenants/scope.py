"""The only door through row-level security: which teams the current transaction may see.

Nothing outside these two context managers (and the group-committed writer, which names the teams of its batch) opens a
tenant table. Both begin a transaction, since the setting lives and dies with one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from kernel.rowsecurity import EVERY_TEAM, open_to


@contextmanager
def team(*team_ids: str, using: str = "default") -> Iterator[None]:
    """A transaction that sees the rows of these teams and no others."""
    with transaction.atomic(using=using):
        open_to(team_ids, using=using)
        yield


@contextmanager
def every_team(*, using: str = "default") -> Iterator[None]:
    """A transaction that sees all teams: key look-up, sweepers and the cross-team admin."""
    with transaction.atomic(using=using):
        open_to([EVERY_TEAM], using=using)
        yield
