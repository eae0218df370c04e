"""`manage.py create_key`: create an API key for a team."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from kernel.clock import now
from tenants import services
from tenants.models import Scope, ToolKind


class Command(BaseCommand):
    """Creates the key, and the team if it does not exist, and prints the secret."""

    help = "Create an API key for a team. The team is created if it does not exist."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--team", required=True)
        parser.add_argument("--name", default="default")
        parser.add_argument("--scopes", default=Scope.ALL.value, help="comma-separated (default: all scopes)")
        parser.add_argument("--models", default="", help="comma-separated (default: all models of the team)")
        parser.add_argument("--tools", default=ToolKind.ALL.value, help="comma-separated, or none (default: all tools)")
        parser.add_argument("--expires", type=int, metavar="DAYS")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        scopes = _names(options["scopes"])
        if unknown := sorted(set(scopes) - set(Scope.values)):
            raise CommandError(f"Unknown scopes: {', '.join(unknown)}. Known scopes: {', '.join(Scope.values)}.")
        tools = _names(options["tools"].replace("none", ""))
        if unknown := sorted(set(tools) - set(ToolKind.values)):
            raise CommandError(f"Unknown tools: {', '.join(unknown)}. Known tools: {', '.join(ToolKind.values)}, none.")
        days = options["expires"]
        if days is not None and days < 1:
            raise CommandError("--expires must be at least 1 day.")
        new = services.create_key(
            team=services.ensure_team(name=options["team"]),
            name=options["name"],
            scopes=scopes,
            allowed_models=_names(options["models"]) or None,
            tools=tools,
            expires_at=now() + timedelta(days=days) if days else None,
        )
        shown = {"team": new.key.team_id, "key_id": new.key.pk, "key": new.secret}
        self.stdout.write(json.dumps(shown) if options["json"] else new.secret)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
