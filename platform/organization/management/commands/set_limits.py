"""`manage.py set_limits`: set limits and budgets of a team, a key or an end user."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from limits import services
from limits.arguments import add_limit_arguments, set_limits_from
from tenants import scope
from tenants.models import ApiKey, LimitSet, Team
from tenants.models.limits import END_USER_LENGTH, LIMITS


class Command(BaseCommand):
    """Changes the limits and budgets that the options name, and prints all limits and budgets of the subject."""

    help = "Set limits and budgets of a team, of one of its API keys, or of its end users."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--team", required=True, help="name or id")
        subject = parser.add_mutually_exclusive_group()
        subject.add_argument("--key", metavar="ID", help="id of an API key of the team")
        subject.add_argument(
            "--end-user",
            default="",
            metavar="ID",
            help="safety_identifier (or user) of requests; * is every end user without limits of its own",
        )
        parser.add_argument("--json", action="store_true")
        add_limit_arguments(parser)

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        end_user = options["end_user"]
        if len(end_user) > END_USER_LENGTH:
            raise CommandError(f"--end-user may have at most {END_USER_LENGTH} characters.")
        with scope.every_team():
            named = options["team"]
            team = Team.objects.filter(pk=named).first() or Team.objects.filter(name=named).first()
            if team is None:
                raise CommandError(f"There is no team '{named}'.")
            api_key = None
            if options["key"]:
                api_key = ApiKey.objects.filter(pk=options["key"], team=team).first()
                if api_key is None:
                    raise CommandError(f"The team '{team}' has no API key '{options['key']}'.")
            set_limits_from(options, team=team, api_key=api_key, end_user=end_user)
            shown = _shown(services.find_limit_set(team=team, api_key=api_key, end_user=end_user))
        if options["json"]:
            self.stdout.write(json.dumps({"team": team.pk, "key": options["key"], "end_user": end_user, **shown}))
            return
        for name, value in shown["limits"].items():
            self.stdout.write(f"{name}: {value:,}")
        for budget in shown["budgets"]:
            kind = "hard" if budget["hard"] else "soft"
            self.stdout.write(f"budget: ${budget['amount']} per {budget['period']} ({kind})")
        if not shown["limits"] and not shown["budgets"]:
            self.stdout.write("No limits.")


def _shown(found: LimitSet | None) -> dict[str, Any]:
    if found is None:
        return {"limits": {}, "budgets": []}
    values = {name: getattr(found, name) for name in LIMITS}
    return {
        "limits": {name: value for name, value in values.items() if value is not None},
        "budgets": [
            {
                "period": budget.period,
                "amount": f"{budget.amount.normalize():f}",
                "hard": budget.is_hard,
                "alert_percents": list(budget.alert_percents),
            }
            for budget in found.budgets.order_by("period", "-is_hard")
        ],
    }
