"""Seeded teams with members and API keys in every state, and the models that they use."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.utils.text import slugify

from tenants import scope, services
from tenants.models import (
    ApiKey,
    Membership,
    Model,
    ModelVisibility,
    Role,
    Scope,
    StaffMember,
    StaffRole,
    Team,
    Upstream,
)
from tenants.prices import PriceList

TEAMS = (
    "Harbor Logistics", "Lumen Research", "Quarry Finance", "Orchard Health", "Tidewater Games", "Summit Legal",
    "Meadow Media", "Foundry Robotics",
)  # fmt: skip
MODELS = {
    "atlas-large": PriceList.simple(input="2.50", cached_input="0.25", output="10", source="seed"),
    "atlas-mini": PriceList.simple(input="0.25", cached_input="0.025", output="2", source="seed"),
    "orbit-reasoner": PriceList.simple(input="1.10", output="4.40", source="seed"),
}
"""Models with their prices."""
_UPSTREAM = "Seeded models"
# Long enough for all seeded runs, so that every event log can be replayed.
_LOG_HOURS = 24 * 60


@dataclass(frozen=True, kw_only=True)
class SeededUser:
    """A user with the password, which is only shown once. Staff have no team."""

    username: str
    password: str
    role: str
    team: str = ""


@dataclass(frozen=True, kw_only=True)
class SeededTeam:
    """A seeded team. `secret` belongs to its first key; `keys` are the keys that requests use."""

    team: Team
    secret: str
    keys: Sequence[ApiKey]
    people: Sequence[SeededUser] = field(default_factory=tuple)


def others() -> list[str]:
    """Return the names of teams that are neither seeded nor the demo team."""
    with scope.every_team():
        names = Team.objects.exclude(name="demo").order_by("name").values_list("name", flat=True)
        return [name for name in names if not name.startswith(TEAMS)]


def free_names(count: int, *, label: str = "") -> list[str]:
    """Return unused team names. Repeated names get a number."""
    with scope.every_team():
        taken = set(Team.objects.values_list("name", flat=True))
    names: list[str] = []
    for index in range(count):
        base = " ".join(part for part in (TEAMS[index % len(TEAMS)], label) if part)
        number, name = 1, base
        while name in taken:
            number += 1
            name = f"{base} {number}"
        taken.add(name)
        names.append(name)
    return names


def make_tenant(name: str, *, rng: random.Random, at: datetime, days: int) -> SeededTeam:
    """Create a team with a user of each role, and API keys in every state."""
    team, day, people, keys, secret = services.ensure_team(name=name), timedelta(days=1), [], [], ""
    with scope.team(team.pk):
        Team.objects.filter(pk=team.pk).update(log_retention_hours=_LOG_HOURS, created_at=at - (days + 90) * day)
        for role in Role:
            user, person = _user(f"{slugify(name)}-{role.value.removeprefix('team_')}", role, team=name)
            Membership.objects.create(team=team, user=user, role=role)
            people.append(person)
        staging = {"scopes": [Scope.RESPONSES_READ, Scope.RESPONSES_WRITE]}
        expiring = {"allowed_models": ["atlas-mini"], "expires_at": at + 9 * day}
        for label, age, used, options in (
            ("Production", 88, rng.randrange(1, 40) * timedelta(minutes=1), {}),
            ("Staging", 60, rng.randrange(2, 20) * timedelta(hours=1), staging),
            ("Build server", 21, rng.randrange(1, 5) * day, expiring),
            ("Workshop", 33, 4 * day, {"expires_at": at - 3 * day}),
            ("Old laptop", 80, 11 * day, {}),
            ("Never used", 120, None, {}),
        ):
            made = services.create_key(team=team, spec=services.KeySpec(name=label, **options))
            secret = secret or made.secret
            if label == "Old laptop":
                services.revoke_key(key=made.key)
            last_used = None if used is None else at - used
            ApiKey.objects.filter(pk=made.key.pk).update(created_at=at - age * day, last_used_at=last_used)
            keys.append(made.key)
    return SeededTeam(team=team, secret=secret, keys=keys[:2], people=people)


def make_staff() -> list[SeededUser]:
    """Create an operator and an auditor unless they exist; return the new ones."""
    made = []
    for role in StaffRole:
        username = f"seeded-{role.value.replace('_', '-')}"
        if not User.objects.filter(username=username).exists():
            user, person = _user(username, role)
            StaffMember.objects.create(user=user, role=role)
            made.append(person)
    return made


def _user(username: str, role: Role | StaffRole, *, team: str = "") -> tuple[User, SeededUser]:
    password = secrets.token_urlsafe(9)
    user = User.objects.create_user(username, email=f"{username}@example.com", password=password, is_staff=True)
    return user, SeededUser(username=username, password=password, role=str(role.label), team=team)


def make_models(teams: Sequence[Team]) -> Upstream:
    """Create the models that the seeded teams use. They belong to the demo upstream if there is one."""
    upstream = Upstream.objects.filter(name="demo").first()
    if upstream is None:
        upstream = Upstream.objects.filter(name=_UPSTREAM).first()
    if upstream is None:
        upstream = services.add_upstream(name=_UPSTREAM, base_url="http://127.0.0.1:9/v1")
    behind = "demo" if upstream.name == "demo" else ""
    for name, prices in MODELS.items():
        shown = f"{behind}-reasoning" if behind and name == "orbit-reasoner" else behind
        model, created = Model.objects.get_or_create(name=name, upstream=upstream, defaults={"upstream_model": shown})
        if created:
            services.set_prices(model, prices.entries)
        with scope.every_team():
            ModelVisibility.objects.bulk_create(
                [ModelVisibility(model=model, team=team) for team in teams], ignore_conflicts=True
            )
    return upstream
