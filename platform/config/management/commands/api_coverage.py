"""`manage.py api_coverage`: generates tables of docs/reference/."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from responses.api.coverage import PAGES, update_tables


class Command(BaseCommand):
    """Command that generates the tables of the manual."""

    help = "Generate the tables of docs/reference/api-coverage.md and errors.md from the code."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        for page in PAGES:
            manual = settings.BASE_DIR / page
            manual.write_text(update_tables(manual.read_text()))
