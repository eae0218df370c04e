"""`manage.py migrate`: Django's command as the owner of the tables, one at a time across all nodes."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connections
from typing_extensions import override

_LOCK = 7_265_737_001  # arbitrary, but the same on every node and in every version


class Command(migrate.Command):
    """Command that migrates as the owner (DATABASE_OWNER_URL), with an advisory lock against concurrent runs."""

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        # The application's role does not own the tables, so it cannot alter them.
        options["database"] = "owner"
        with connections["owner"].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            try:
                super().handle(*args, **options)
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
