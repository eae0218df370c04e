"""Teams, keys, models, budgets and users of the benchmark, and a seeded team with rows of every kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.console import population

if TYPE_CHECKING:
    from tests.admin.crawling import TeamData

SEEDED_RESPONSES = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Secrets of a key of the largest team and of an admin key."""

    team: str = field(repr=False)
    organization: str = field(repr=False)


def team_id(number: int) -> str:
    """Return the id of a team, of which the first is the largest."""
    return f"team_{number:036}"


def key_id(number: int) -> str:
    """Return the id of an API key. The keys are distributed among the teams one after the other."""
    return f"key_{number:036}"


def create_organization() -> None:
    """Create the rows that the test data refers to, and a budget for each team."""
    from core.clock import now
    from limits.services import set_budget
    from responses.webhooks.events import EVENT_TYPES
    from responses.webhooks.models import WebhookEndpoint
    from tenants import scope, services
    from tenants.models import ApiKey, Model, ModelVisibility, Team, Upstream
    from tenants.models.limits import Period
    from tenants.prices import PriceList

    ago = now() - timedelta(days=population.DAYS)
    upstream = Upstream.objects.create(id=f"upst_{'1'.zfill(36)}", name="an upstream", base_url="http://127.0.0.1:9/v1")
    with scope.every_team():
        teams = [Team(id=team_id(n), name=f"Team {n:02}", created_at=ago) for n in range(population.TEAMS)]
        Team.objects.bulk_create(teams)
        ApiKey.objects.bulk_create(
            ApiKey(
                id=key_id(n),
                team=teams[n % population.TEAMS],
                name=f"Key {n:03}",
                digest=f"{n:064}",
                prefix=f"sk-{n:08}",
                last_four=f"{n:04}",
                created_at=ago,
            )
            for n in range(population.KEYS)
        )
        WebhookEndpoint.objects.bulk_create(
            WebhookEndpoint(
                id=team.pk.replace("team_", "we_"),
                team=team,
                name="Orders",
                url="https://orders.example.com/hook",
                event_types=list(EVENT_TYPES),
            )
            for team in teams
        )
    for number in range(population.MODELS):
        model = Model.objects.create(name=f"model-{number}", upstream=upstream)
        services.set_prices(model, PriceList.simple(input="2.50", output="10").entries)
        with scope.every_team():
            ModelVisibility.objects.bulk_create(ModelVisibility(model=model, team=team) for team in teams)
    for number, team in enumerate(teams):
        # Soft, without mails: nothing is requested from a model here.
        for period in (Period.DAY, Period.MONTH):
            set_budget(team=team, period=period, amount=Decimal(10 + number), is_hard=False, alert_percents=[])


def seeded_subject() -> "TeamData":
    """Add a team with rows of every kind. Return its rows, and those of the largest team where it has some."""
    from seeding.seed import SeedOptions, seed
    from tenants import scope
    from tenants.models import Team
    from tests.admin.crawling import TeamData
    from tests.admin.every_row import team_with_every_row

    small = team_with_every_row(seed(SeedOptions(responses=SEEDED_RESPONSES, teams=1)).tenants[0].team)
    with scope.every_team():
        largest = TeamData.of(Team.objects.get(pk=team_id(0)), markers=[], most=1)
    return TeamData(team=largest.team, markers=[], rows={**small.rows, **largest.rows})


def create_keys() -> Keys:
    """Create a key of the largest team and an admin key."""
    from tenants import scope, services
    from tenants.models import AdminScope, Team

    with scope.every_team():
        team = Team.objects.get(pk=team_id(0))
    key = services.create_key(team=team, spec=services.KeySpec(name="Benchmark"))
    admin_key = services.create_admin_key(name="Benchmark", scopes=[AdminScope.ALL.value])
    return Keys(team=key.secret, organization=admin_key.secret)


def sign_in(*names: str) -> Mapping[str, str]:
    """Create users and return their session cookies."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User

    from tenants import scope
    from tenants.models import Membership, Role, StaffMember, StaffRole

    cookies = {}
    for name in names:
        user = User.objects.create(username=name, is_staff=True, is_superuser=name == "administrator")
        if name == "operator":
            StaffMember.objects.create(user=user, role=StaffRole.OPERATOR)
        if name == "team lead":
            with scope.every_team():
                Membership.objects.create(team_id=team_id(0), user=user, role=Role.TEAM_LEAD)
        session = import_module(settings.SESSION_ENGINE).SessionStore()
        session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(user.pk), settings.AUTHENTICATION_BACKENDS[0]
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.save()
        cookies[name] = f"{settings.SESSION_COOKIE_NAME}={session.session_key}"
    return cookies
