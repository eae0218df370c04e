"""`manage.py migrate`: Django's, through the owner of the tables, one at a time on however many nodes."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connections
from typing_extensions import override

_LOCK = 7_265_737_001  # any number, the same on every node


class Command(migrate.Command):
    """Runs as the owner (DATABASE_OWNER_URL) and holds an advisory lock, so that two nodes cannot migrate at once."""

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        options["database"] = "owner"
        with connections["owner"].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            try:
                super().handle(*args, **options)
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
