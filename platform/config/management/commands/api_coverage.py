"""`manage.py api_coverage`: generates the tables of docs/reference/api-coverage.md."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from responses.api.coverage import update_tables


class Command(BaseCommand):
    """Command that generates the tables of the manual."""

    help = "Generate the tables of docs/reference/api-coverage.md from responses/api/coverage.py."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        manual = settings.BASE_DIR / "docs" / "reference" / "api-coverage.md"
        manual.write_text(update_tables(manual.read_text()))
