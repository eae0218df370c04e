"""`manage.py create_key`: create an API key for a team, or an admin key."""

import json
from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from core.clock import now
from limits.arguments import add_limit_arguments, has_limits, set_limits_from
from tenants import scope, services
from tenants.models import AdminScope, Scope, ToolKind


class Command(BaseCommand):
    """Creates the key, and the team if it does not exist, and prints the secret."""

    help = (
        "Create an API key for a team. The team is created if it does not exist. With scopes that begin with admin. it "
        "is an admin key, which belongs to no team."
    )
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--team", help="name of the team; required unless the key is an admin key")
        parser.add_argument("--name", default="default")
        parser.add_argument("--scopes", default=Scope.ALL.value, help="comma-separated (default: all scopes of a team)")
        parser.add_argument("--models", default="", help="comma-separated (default: all models of the team)")
        parser.add_argument("--tools", default=ToolKind.ALL.value, help="comma-separated, or none (default: all tools)")
        parser.add_argument("--expires", type=int, metavar="DAYS")
        parser.add_argument("--json", action="store_true")
        add_limit_arguments(parser)

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        scopes = _names(options["scopes"])
        is_admin = any(name.startswith("admin.") for name in scopes)
        known = (AdminScope if is_admin else Scope).values
        if unknown := sorted(set(scopes) - set(known)):
            kind = " of an admin key" if is_admin else ""
            raise CommandError(f"Unknown scopes{kind}: {', '.join(unknown)}. Known scopes: {', '.join(known)}.")
        tools = _names(options["tools"].replace("none", ""))
        if unknown := sorted(set(tools) - set(ToolKind.values)):
            raise CommandError(f"Unknown tools: {', '.join(unknown)}. Known tools: {', '.join(ToolKind.values)}, none.")
        days = options["expires"]
        if days is not None and days < 1:
            raise CommandError("--expires must be at least 1 day.")
        expires_at = now() + timedelta(days=days) if days else None
        if is_admin:
            self._create_admin_key(scopes, expires_at, options)
            return
        if not options["team"]:
            raise CommandError("--team is required.")
        # One transaction: a key must not exist without the limits that it was to have.
        with scope.every_team():
            team = services.ensure_team(name=options["team"])
            models = _names(options["models"]) or None
            spec = services.KeySpec(
                name=options["name"], scopes=scopes, allowed_models=models, tools=tools, expires_at=expires_at
            )
            new = services.create_key(team=team, spec=spec)
            set_limits_from(options, team=team, api_key=new.key)
        shown = {"team": new.key.team_id, "key_id": new.key.pk, "key": new.secret}
        self.stdout.write(json.dumps(shown) if options["json"] else new.secret)

    def _create_admin_key(self, scopes: list[str], expires_at: datetime | None, options: dict[str, Any]) -> None:
        if options["team"] or options["models"] or options["tools"] != ToolKind.ALL.value:
            raise CommandError("An admin key belongs to no team: leave out --team, --models and --tools.")
        if has_limits(options):
            raise CommandError("An admin key calls no models: leave out its limits.")
        new = services.create_admin_key(name=options["name"], scopes=scopes, expires_at=expires_at)
        shown = {"team": None, "key_id": new.key.pk, "key": new.secret}
        self.stdout.write(json.dumps(shown) if options["json"] else new.secret)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
