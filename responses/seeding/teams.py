"""Seeded teams with members and API keys in every state, and the models that they use."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

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
from tenants.prices import Prices

TEAMS = (
    "Harbor Logistics", "Lumen Research", "Quarry Finance", "Orchard Health", "Tidewater Games", "Summit Legal",
    "Meadow Media", "Foundry Robotics",
)  # fmt: skip
MODELS = {
    "atlas-large": Prices(
        input_price=Decimal("2.50"), cached_input_price=Decimal("0.25"), output_price=Decimal("10.00")
    ),
    "atlas-mini": Prices(
        input_price=Decimal("0.25"), cached_input_price=Decimal("0.025"), output_price=Decimal("2.00")
    ),
    "orbit-reasoner": Prices(input_price=Decimal("1.10"), output_price=Decimal("4.40")),
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
    """A seeded team. `secret` belongs to its first key; `keys` are those used by requests."""

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
    """Create a team with API keys and a user of each role."""
    team = services.ensure_team(name=name)
    with scope.team(team.pk):
        Team.objects.filter(pk=team.pk).update(
            log_retention_hours=_LOG_HOURS, created_at=at - timedelta(days=days + 90)
        )
    people = [_member(team, role) for role in Role]
    secret, keys = _keys(team, rng=rng, at=at)
    return SeededTeam(team=team, secret=secret, keys=keys, people=people)


def _member(team: Team, role: Role) -> SeededUser:
    username = f"{slugify(team.name)}-{role.value.removeprefix('team_')}"
    user, password = _user(username)
    with scope.team(team.pk):
        Membership.objects.create(team=team, user=user, role=role)
    return SeededUser(username=username, password=password, role=str(role.label), team=team.name)


def make_staff() -> list[SeededUser]:
    """Create an operator and an auditor unless they exist; return the new ones."""
    made = []
    for role in StaffRole:
        username = f"seeded-{role.value.replace('_', '-')}"
        if not User.objects.filter(username=username).exists():
            user, password = _user(username)
            StaffMember.objects.create(user=user, role=role)
            made.append(SeededUser(username=username, password=password, role=str(role.label)))
    return made


def _user(username: str) -> tuple[User, str]:
    password = secrets.token_urlsafe(9)
    return User.objects.create_user(
        username, email=f"{username}@example.com", password=password, is_staff=True
    ), password


def _keys(team: Team, *, rng: random.Random, at: datetime) -> tuple[str, list[ApiKey]]:
    """Create API keys in every state and return the two that are in use."""
    day = timedelta(days=1)
    first = services.create_key(team=team, name="Production")
    second = services.create_key(team=team, name="Staging", scopes=[Scope.RESPONSES_READ, Scope.RESPONSES_WRITE])
    soon = services.create_key(team=team, name="Build server", allowed_models=["atlas-mini"], expires_at=at + 9 * day)
    old = services.create_key(team=team, name="Workshop", expires_at=at - 3 * day)
    leaked = services.create_key(team=team, name="Old laptop")
    unused = services.create_key(team=team, name="Never used")
    services.revoke_key(key=leaked.key)
    times = {
        first.key.pk: (at - 88 * day, at - timedelta(minutes=rng.randrange(1, 40))),
        second.key.pk: (at - 60 * day, at - timedelta(hours=rng.randrange(2, 20))),
        soon.key.pk: (at - 21 * day, at - rng.randrange(1, 5) * day),
        old.key.pk: (at - 33 * day, at - 4 * day),
        leaked.key.pk: (at - 80 * day, at - 11 * day),
        unused.key.pk: (at - 120 * day, None),
    }
    with scope.team(team.pk):
        for key_id, (created, used) in times.items():
            ApiKey.objects.filter(pk=key_id).update(created_at=created, last_used_at=used)
    return first.secret, [first.key, second.key]


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
        model, _ = Model.objects.get_or_create(
            name=name, upstream=upstream, defaults={"upstream_model": shown, **asdict(prices)}
        )
        with scope.every_team():
            ModelVisibility.objects.bulk_create(
                [ModelVisibility(model=model, team=team) for team in teams], ignore_conflicts=True
            )
    return upstream
