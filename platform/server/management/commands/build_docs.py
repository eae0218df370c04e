"""`manage.py build_docs`: builds the documentation site before the first request for it."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override


class Command(BaseCommand):
    """Command that builds the documentation site."""

    help = "Build the documentation that web serves below /docs/guide/, if its sources have changed."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        from guide.build import build  # MkDocs would slow down the commands that list all commands

        self.stdout.write(str(build(settings.GUIDE_DIR.resolve())))
