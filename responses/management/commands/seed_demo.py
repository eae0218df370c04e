"""`manage.py seed_demo`: teams with realistic data, for looking at the admin."""

import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from kernel.clock import now
from responses.rollups import aggregate
from responses.seeding import teams
from responses.seeding.seed import Seeded, SeedOptions, seed

_ROLLING_SECONDS = 4


class Command(BaseCommand):
    """Adds teams with names of their own each time; what is there stays as it is."""

    help = "Add teams with responses, conversations, keys and people, as weeks of use leave them behind."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--responses", type=int, default=500, metavar="N", help="of all teams together")
        parser.add_argument("--teams", type=int, default=3, metavar="N")
        parser.add_argument("--days", type=int, default=30, metavar="N", help="how far back they reach")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="the same says the same")
        parser.add_argument("--yes", action="store_true", help="also on a platform that somebody uses")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        if min(options["responses"], options["teams"], options["days"]) < 1:
            raise CommandError("--responses, --teams and --days take numbers of at least 1.")
        used = teams.others()
        if used and not options["yes"]:
            named = ", ".join(used[:3]) + (" and others" if len(used) > 3 else "")
            raise CommandError(
                f"This platform has teams of its own: {named}. Say --yes to add made-up ones beside them."
            )
        started = time.monotonic()
        names = ("responses", "teams", "days", "seed")
        made = seed(SeedOptions(**{name: options[name] for name in names}))
        # The sums of past hours know nothing of rows that come late; what is not rolled up here, the worker does.
        aggregate.discard(since=now() - timedelta(days=options["days"] + 1))
        aggregate.roll_up(seconds=_ROLLING_SECONDS)
        self._tell(made, seconds=time.monotonic() - started)

    def _tell(self, made: Seeded, *, seconds: float) -> None:
        """Passwords and keys are told here and nowhere else."""
        self.stdout.write(f"{made.responses} responses of {len(made.tenants)} teams in {seconds:.1f} s\n\n")
        for tenant in made.tenants:
            self.stdout.write(f"{tenant.team.name}: key {tenant.secret}\n")
        self.stdout.write("\n")
        for person in (*(one for tenant in made.tenants for one in tenant.people), *made.staff):
            self.stdout.write(
                f"{person.username:<40} {person.password:<14} {person.role} {person.team}".rstrip() + "\n"
            )
