"""`manage.py approvals`: list the decisions for which responses wait."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from responses.runs.decisions.listing import AwaitedDecision, awaited_decisions
from tenants import scope
from tenants.models import Team


class Command(BaseCommand):
    """Lists open decisions, the first to expire first."""

    help = "List the calls that responses wait to have approved, the first to expire first."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--team", help="name or id of a team; default: all teams")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        team_id = None if options["team"] is None else _team_id(options["team"])
        with scope.every_team():
            found = awaited_decisions(team_id=team_id)
        if options["json"]:
            self.stdout.write(json.dumps([_shown(decision) for decision in found]))
            return
        for shown in map(_shown, found):
            arguments = ", ".join(shown["arguments"])
            self.stdout.write(
                f"{shown['id']}  {shown['tool']}({arguments})  team {shown['team']}, response {shown['response']}, "
                f"until {shown['until']}"
            )


def _team_id(name: str) -> str:
    with scope.every_team():
        for field in ("pk", "name"):
            found = Team.objects.filter(**{field: name}).values_list("pk", flat=True).first()
            if found is not None:
                return found
    raise CommandError(f"There is no team '{name}'.")


def _shown(decision: AwaitedDecision) -> dict[str, Any]:
    # Only the names of the arguments: their values are content.
    row, subject = decision.row, decision.subject
    return {
        "id": row.pk,
        "kind": row.kind,
        "team": row.team_id,
        "response": row.response_id,
        "tool": subject.tool,
        "arguments": sorted(subject.arguments),
        "since": row.asked_at.isoformat(),
        "until": row.expires_at.isoformat() if row.expires_at is not None else None,
    }
