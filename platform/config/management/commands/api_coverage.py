"""`manage.py api_coverage`: generates the tables of docs/api-coverage.md."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from responses.api.coverage import written_into


class Command(BaseCommand):
    """Command that generates the tables of the manual."""

    help = "Generate the tables of docs/api-coverage.md from responses/api/coverage.py."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        manual = settings.BASE_DIR / "docs" / "api-coverage.md"
        manual.write_text(written_into(manual.read_text()))
