"""`manage.py update_prices`: compare the prices of models with those that their providers publish, and update them."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from core.clock import now
from routing import price_catalog, price_updates
from routing.price_updates import PriceComparison
from tenants.prices import amount, label


class Command(BaseCommand):
    """Prints the differences, and applies them with --apply."""

    help = (
        "Compare the prices of models with those that their providers publish, from the data of the installed package "
        "genai-prices. Prices that people entered are kept."
    )
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("models", nargs="*", metavar="MODEL", help="(default: all models)")
        parser.add_argument("--upstream", default="", help="only models of the upstream of this name")
        parser.add_argument("--apply", action="store_true", help="store the published prices")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        found = price_updates.models(options["models"], upstream=options["upstream"])
        if missing := sorted(set(options["models"]) - {model.name for model in found}):
            raise CommandError(f"Unknown models: {', '.join(missing)}.")
        compared = [(model, price_updates.compare(model, at=now())) for model in found]
        results = []
        for model, comparison in compared:
            if options["apply"] and comparison is not None and not comparison.is_current:
                price_updates.apply(comparison)
            results.append(
                {"model": model.name, "upstream": model.upstream.name, "listed": None}
                if comparison is None
                else _described(comparison, is_applied=options["apply"])
            )
        if options["json"]:
            self.stdout.write(json.dumps({"source": price_catalog.source(), "models": results}))
            return
        unknown = [model.name for model, comparison in compared if comparison is None]
        differing = [comparison for _, comparison in compared if comparison is not None and not comparison.is_current]
        for comparison in differing:
            self.stdout.write("\n".join(_lines(comparison)))
        self.stdout.write(f"Compared with {price_catalog.source()}: {_models(len(differing))} with differences.")
        if unknown:
            self.stdout.write(f"Not in the list, or from an unknown provider: {', '.join(unknown)}.")
        if differing:
            hint = "Nothing was changed. Use --apply to store the published prices."
            self.stdout.write("Applied." if options["apply"] else hint)


def _models(count: int) -> str:
    return f"{count} model" if count == 1 else f"{count} models"


def _lines(comparison: PriceComparison) -> list[str]:
    model, listed = comparison.model, comparison.listed
    return [
        f"{model.name} at {model.upstream.name} ({listed.provider}, {listed.name}):",
        *(f"  + {label(entry.stored())}" for entry in comparison.added),
        *(f"  ~ {label(new.stored())} instead of {amount(old.amount)}" for old, new in comparison.changed),
        *(f"  - {label(entry.stored())}" for entry in comparison.removed),
        *(f"  = {label(entry.stored())}: {entry.source}, kept" for entry in comparison.kept),
        *(f"  {remark}" for remark in listed.remarks),
    ]


def _described(comparison: PriceComparison, *, is_applied: bool) -> dict[str, Any]:
    return {
        "model": comparison.model.name,
        "upstream": comparison.model.upstream.name,
        "listed": f"{comparison.listed.provider}: {comparison.listed.name}",
        "added": [entry.stored() for entry in comparison.added],
        "changed": [{"from": old.stored(), "to": new.stored()} for old, new in comparison.changed],
        "removed": [entry.stored() for entry in comparison.removed],
        "kept": [entry.stored() for entry in comparison.kept],
        "remarks": list(comparison.listed.remarks),
        "applied": is_applied and not comparison.is_current,
    }
