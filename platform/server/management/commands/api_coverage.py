"""`manage.py api_coverage`: generates tables of docs/reference/ and compares the API with the openai SDK."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from openai import VERSION
from typing_extensions import override

from server.reference.coverage import PAGES, update_tables
from server.reference.pages import FOLDER, pages
from server.reference.sdk_comparison import gaps
from server.reference.sdk_decisions import DECISIONS, undecided


class Command(BaseCommand):
    """Command that generates the tables of the manual and prints the parts of the openai SDK that this server lacks."""

    help = (
        "Generate the pages in docs/reference/api/ and the tables of api-coverage.md and errors.md from the code, and "
        "print what the installed openai SDK can send and this server does not accept. Fails if one of these has no "
        "decision."
    )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        for page in PAGES:
            manual = settings.BASE_DIR / page
            manual.write_text(update_tables(manual.read_text()))
        (settings.BASE_DIR / FOLDER).mkdir(exist_ok=True)
        for page, text in pages().items():
            (settings.BASE_DIR / page).write_text(text)
        found = gaps()
        self.stdout.write(f"openai {VERSION} has {len(found)} endpoints, parameters and values beyond this server:")
        for decision in DECISIONS:
            covered = [gap for gap in found if decision.covers(gap)]
            self.stdout.write("\n  ".join([f"\n{decision.reason}:", *covered]))
        if missing := undecided(found):
            raise CommandError("\n  ".join(["There is no decision about:", *missing]))
