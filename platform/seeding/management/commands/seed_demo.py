"""`manage.py seed_demo`: add teams with realistic data to explore the admin."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from responses.rollups import aggregate
from seeding import teams
from seeding.seed import Seeded, SeedOptions, seed

_ROLLING_SECONDS = 4


class Command(BaseCommand):
    """Adds new teams at every call and leaves existing data unchanged."""

    help = "Add demo teams with users, API keys and the responses and conversations of several weeks."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--responses", type=int, default=500, metavar="N", help="number of responses of all teams together"
        )
        parser.add_argument("--teams", type=int, default=3, metavar="N", help="number of teams")
        parser.add_argument("--days", type=int, default=30, metavar="N", help="length of the history in days")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="equal seeds produce equal content")
        parser.add_argument("--yes", action="store_true", help="add demo data even if there are other teams")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        if min(options["responses"], options["teams"], options["days"]) < 1:
            raise CommandError("--responses, --teams and --days must be at least 1.")
        used = teams.others()
        if used and not options["yes"]:
            named = ", ".join(used[:3]) + (" and others" if len(used) > 3 else "")
            raise CommandError(f"This platform already has teams: {named}. Use --yes to add demo teams anyway.")
        started = time.monotonic()
        names = ("responses", "teams", "days", "seed")
        made = seed(SeedOptions(**{name: options[name] for name in names}))
        # The worker rolls up the rest.
        aggregate.roll_up(seconds=_ROLLING_SECONDS)
        self._print(made, seconds=time.monotonic() - started)

    def _print(self, made: Seeded, *, seconds: float) -> None:
        # Passwords and secrets are shown only here: the database has their hashes.
        self.stdout.write(f"{made.responses} responses of {len(made.tenants)} teams in {seconds:.1f} s\n\n")
        for tenant in made.tenants:
            self.stdout.write(f"{tenant.team.name}: key {tenant.secret}\n")
        self.stdout.write("\n")
        for person in (*(user for tenant in made.tenants for user in tenant.people), *made.staff):
            self.stdout.write(
                f"{person.username:<40} {person.password:<14} {person.role} {person.team}".rstrip() + "\n"
            )
