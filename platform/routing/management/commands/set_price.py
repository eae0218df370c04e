"""`manage.py set_price`: set the prices of a model's tokens."""

import json
from argparse import ArgumentParser, ArgumentTypeError
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from routing import price_updates
from tenants.prices import PriceList, label


def _dollars(text: str) -> Decimal:
    try:
        value = Decimal(text.removeprefix("$"))
    except InvalidOperation as error:
        raise ArgumentTypeError("not an amount in dollars, such as 1.25") from error
    if not value.is_finite() or value < 0:
        raise ArgumentTypeError("not an amount of at least 0 dollars")
    return value


class Command(BaseCommand):
    """Replaces the prices of the model's tokens."""

    help = (
        "Set the prices of a model, in US dollars per million tokens. They replace all prices of its tokens, also "
        "those of service tiers, batches and long contexts; prices of calls and tools remain."
    )
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="name of the model, as clients send it; * is the route of all other names")
        parser.add_argument("--input", type=_dollars, required=True, metavar="X")
        parser.add_argument("--output", type=_dollars, required=True, metavar="Y")
        parser.add_argument("--cached-input", type=_dollars, metavar="Z", help="(default: the price of input)")
        parser.add_argument("--cache-write", type=_dollars, metavar="W", help="(default: the price of input)")
        parser.add_argument("--upstream", default="", help="name of the upstream, if several serve the model")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        name, upstream = options["model"], options["upstream"]
        found = price_updates.models([name], upstream=upstream)
        if not found:
            wildcards = price_updates.models(["*"], upstream=upstream)
            if not wildcards:
                raise CommandError(f"No upstream serves a model called {name!r}.")
            found = [price_updates.model_of_wildcard(wildcards[0], name)] if len(wildcards) == 1 else wildcards
        if len(found) > 1:
            names = ", ".join(model.upstream.name for model in found)
            raise CommandError(f"Several upstreams serve {name!r}: choose one of {names} with --upstream.")
        prices = PriceList.simple(
            input=options["input"],
            output=options["output"],
            cached_input=options["cached_input"],
            cache_write=options["cache_write"],
        )
        [model] = found
        try:
            price_updates.set_token_prices(model, prices)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        if options["json"]:
            shown = {"model": model.name, "upstream": model.upstream.name, "prices": prices.stored()}
            self.stdout.write(json.dumps(shown))
        else:
            listed = ", ".join(label(entry.stored()) for entry in prices.entries)
            self.stdout.write(f"{model.name} at {model.upstream.name}: {listed}")
