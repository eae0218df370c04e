"""`manage.py reconcile`: compare usage records with sums, responses, prices and an upstream's invoice."""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from billing import reconcile
from core.clock import now
from tenants import scope
from tenants.models import Team, Upstream

_SHOWN = 50


class Command(BaseCommand):
    """Command that prints the differences, and exits with 1 if a difference is unexplained."""

    help = "Compare usage records with hourly sums, responses, prices and an invoice, and explain each difference."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", metavar="TIME", help="a date or time in UTC (default: 31 days ago)")
        parser.add_argument("--until", metavar="TIME", help="a date or time in UTC (default: now)")
        parser.add_argument("--team", metavar="NAME", help="name or id of a team (default: all teams)")
        invoices = parser.add_mutually_exclusive_group()
        invoices.add_argument(
            "--invoice", metavar="FILE.csv", help="an invoice with one row per day and model, or request"
        )
        invoices.add_argument("--openai-usage", metavar="FILE.json", help="answers of OpenAI's usage or costs API")
        parser.add_argument("--upstream", metavar="NAME", help="the upstream of the invoice (default: all)")
        parser.add_argument(
            "--client", metavar="ID", default="", help="our key or project in the invoice; other lines are ignored"
        )
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        present = now()
        since = _moment(options["since"]) if options["since"] else present - timedelta(days=31)
        until = _moment(options["until"]) if options["until"] else present
        upstream = options["upstream"] or ""
        if upstream and not Upstream.objects.filter(name=upstream).exists():
            raise CommandError(f"There is no upstream '{upstream}'.")
        span = reconcile.Span(since=since, until=until, team_id=_team(options["team"]))
        try:
            invoice = None
            if options["invoice"]:
                invoice = reconcile.read_csv(Path(options["invoice"]), client=options["client"])
            elif options["openai_usage"]:
                invoice = reconcile.read_openai(Path(options["openai_usage"]), client=options["client"])
        except (OSError, UnicodeDecodeError, reconcile.InvalidInvoice) as error:
            raise CommandError(str(error)) from error
        result = reconcile.reconcile(span, invoice=invoice, upstream=upstream)
        self._write(result, as_json=options["json"])
        if result.unexplained:
            sys.exit(1)

    def _write(self, result: reconcile.Reconciliation, *, as_json: bool) -> None:
        if as_json:
            shown = {**asdict(result), "unexplained": len(result.unexplained)}
            self.stdout.write(json.dumps(shown, indent=2))
            return
        for name, count in {**result.facts, **result.compared}.items():
            title = name.replace("_", " ")
            self.stdout.write(f"{title:<40}{count:>12,}{' compared' if name in result.compared else ''}")
        kinds: dict[tuple[str, str], int] = {}
        for difference in result.differences:
            kinds[difference.part, difference.explanation] = kinds.get((difference.part, difference.explanation), 0) + 1
        for (part, explanation), count in sorted(kinds.items()):
            if explanation:
                self.stdout.write(f"{part}: {count:,} x {explanation}")
        for difference in result.unexplained[:_SHOWN]:
            values = f"{difference.records} in the records, {difference.other} elsewhere"
            self.stdout.write(f"UNEXPLAINED {difference.part}: {difference.subject}: {difference.name} is {values}")
        self.stdout.write(f"{len(result.differences):,} differences, {len(result.unexplained):,} unexplained.")


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError("Times must be like 2026-11-01 or 2026-11-01T13:00, in UTC.") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _team(name: str | None) -> str | None:
    if not name:
        return None
    with scope.every_team():
        found = Team.objects.filter(pk=name).first() or Team.objects.filter(name=name).first()
    if found is None:
        raise CommandError(f"There is no team '{name}'.")
    return found.pk
