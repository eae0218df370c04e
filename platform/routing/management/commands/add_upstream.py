"""`manage.py add_upstream`: add or update an upstream and route models to it."""

import json
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from core.clock import now
from routing import price_updates
from tenants import directory, services
from tenants.models import MAX_TARGET_LIMIT, Serves, Upstream, WireApi

if TYPE_CHECKING:
    from routing.upstream_check import UpstreamCheck

_LIMITS = {
    "requests_per_minute": "requests per minute to each of these models at the upstream",
    "tokens_per_minute": "tokens per minute, input and output together",
    "concurrent_requests": "requests in progress",
}
# Options that are columns of the models' rows.
_PLACE = (
    "priority",
    "weight",
    "fallback_for",
    "serves",
    *_LIMITS,
    "only_metadata",
    "only_keys",
)
# The options of columns that are validated when they are stored.
_OPTIONS = {"fallback_for": "fallback-for", "keys": "only-keys", "only_metadata": "only-metadata", "region": "region"}
_TEST_SECONDS = 5
# A gateway may list hundreds.
_MAX_NAMED = 10


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentTypeError("not valid JSON") from error
    if not isinstance(value, dict):
        raise ArgumentTypeError("not a JSON object")
    return value


def _limit(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) > MAX_TARGET_LIMIT:
        raise ArgumentTypeError(f"not an integer from 0 to {MAX_TARGET_LIMIT}")
    return int(text)


def _integer(text: str, *, least: int) -> int:
    if not re.fullmatch(r"-?\d{1,5}", text) or not least <= int(text) < 2**15:
        raise ArgumentTypeError(f"not an integer from {least} to {2**15 - 1}")
    return int(text)


class Command(BaseCommand):
    """Adds the upstream, or updates the one of the same name."""

    help = "Add an upstream, or update the one of this name, and route models to it."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True)
        parser.add_argument("--base-url", required=True, help="up to and including /v1")
        parser.add_argument("--api-key", default="")
        parser.add_argument(
            "--models", default="", help="comma-separated model names; * routes every name without its own model"
        )
        parser.add_argument("--wire-api", choices=WireApi.values, help="the upstream's API (default: chat_completions)")
        parser.add_argument(
            "--capabilities",
            type=_json_object,
            default={},
            metavar="JSON",
            help='capabilities of these models, such as {"vision": false, "context_window": 32768}',
        )
        parser.add_argument(
            "--default", action="store_true", help="preferred if several upstreams serve a model with the same priority"
        )
        parser.add_argument(
            "--priority",
            type=partial(_integer, least=-(2**15)),
            metavar="N",
            help="order of the upstreams that serve one of these models, lowest first (default: 0)",
        )
        parser.add_argument(
            "--weight",
            type=partial(_integer, least=0),
            metavar="W",
            help="share of the requests among upstreams of the same priority; 0: no new requests (default: 1)",
        )
        parser.add_argument(
            "--fallback-for", metavar="MODEL", help="model that these models replace while all its upstreams fail"
        )
        parser.add_argument(
            "--serves",
            choices=Serves.values,
            help="flex: lines of batches and requests with the service tier flex; default: all other requests; "
            "priority: requests with the service tier priority (default: all)",
        )
        for name, shown in _LIMITS.items():
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=_limit, metavar="N", help=f"limit of {shown}; 0: none (default)"
            )
        parser.add_argument(
            "--only-keys",
            metavar="IDS",
            help="comma-separated ids of the API keys whose requests are sent to these models; empty: all keys",
        )
        parser.add_argument(
            "--only-metadata",
            type=_json_object,
            metavar="JSON",
            help='pairs that the metadata of requests to these models must have, such as {"tier": "gold"}; {}: none',
        )
        parser.add_argument("--region", help="where the upstream is, shown to operators")
        parser.add_argument("--no-test", action="store_true", help="do not ask the upstream for its models")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        url = urlsplit(options["base_url"])
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise CommandError("--base-url must be an http or https URL, such as http://host:port/v1.")
        if options["api_key"] and "@" in url.netloc:
            raise CommandError("--base-url has a user name, and --api-key is set: an upstream gets one of them.")
        models = [name.strip() for name in options["models"].split(",") if name.strip()]
        place = _place(options)
        for name in ("capabilities", *_PLACE):
            if options[name] not in (None, {}) and not models:
                raise CommandError(f"--{name.replace('_', '-')} requires --models.")
        try:
            upstream = services.add_upstream(
                name=options["name"],
                base_url=options["base_url"],
                api_key=options["api_key"],
                models=models,
                is_default=options["default"],
                wire_api=options["wire_api"],
                capabilities=options["capabilities"],
                place=place,
            )
        except ValidationError as error:
            messages = list(error.messages)
            if hasattr(error, "error_dict"):
                messages = [f"{name}: {' '.join(texts)}" for name, texts in error.message_dict.items()]
                for name, option in _OPTIONS.items():
                    if name in error.message_dict:
                        raise CommandError(f"--{option}: {error.messages[0]}") from error
            raise CommandError(f"--capabilities: {' '.join(messages)}") from error
        # Models that are new, or have no price yet, get the published one if their provider is certain.
        for model in price_updates.models(models, upstream=upstream.name) if models else ():
            if not model.prices():
                price_updates.add_listed_prices(model, at=now())
        shown = {"upstream": upstream.pk, "name": upstream.name, "base_url": upstream.base_url, "models": models}
        check = None if options["no_test"] else _tested(upstream)
        windows = {} if check is None else check.context_windows(models)
        set_windows = services.set_context_windows(upstream=upstream, windows=windows)
        if options["json"]:
            test = None if check is None else check.document(models)
            self.stdout.write(json.dumps({**shown, "test": test}))
            return
        self.stdout.write(f"{upstream.name}: {upstream.base_url}")
        for line in () if check is None else _lines(check, models):
            self.stdout.write(line)
        for name, window in windows.items():
            kept = "" if name in set_windows else " (not stored: the model has another value)"
            self.stdout.write(f"  Context window of {name}: {window} tokens{kept}")


def _place(options: dict[str, Any]) -> dict[str, Any]:
    """Return the values that were given, for `services.add_upstream`."""
    place = {name: options[name] for name in _PLACE if options[name] is not None}
    # A limit of 0 removes it.
    place |= {name: place[name] or None for name in _LIMITS if name in place}
    if (keys := place.pop("only_keys", None)) is not None:
        place["keys"] = [key.strip() for key in keys.split(",") if key.strip()]
    if options["region"] is not None:
        place["region"] = options["region"]
    return place


def _tested(upstream: Upstream) -> "UpstreamCheck":
    # Imports the client of upstreams, which takes a second.
    from routing.upstream_check import UpstreamCheck, check_upstream, run_sync

    try:
        return run_sync(check_upstream(directory.upstream_of(upstream)), seconds=_TEST_SECONDS)
    except TimeoutError:
        return UpstreamCheck(error=f"The upstream did not answer within {_TEST_SECONDS} seconds.")


def _lines(check: "UpstreamCheck", models: Sequence[str]) -> Iterator[str]:
    """Yield what the test has found. The upstream is saved in any case: it may be started later."""
    if check.error:
        yield f"  Test failed: {check.error} The upstream is saved; check its address and its key."
        if check.status is not None:
            yield f"  It answered with HTTP {check.status}{f': {check.words}' if check.words else ''}"
        return
    listed = ", ".join(check.models[:_MAX_NAMED]) + (", …" if len(check.models) > _MAX_NAMED else "")
    yield f"  Test passed: it answered in {check.took_ms} ms and lists {len(check.models)} models: {listed}"
    if missing := check.missing(models):
        yield f"  It does not list: {', '.join(missing)}"
