"""`manage.py seed_demo`: the created rows equal those of real runs."""

import io
import re
from collections import Counter

import httpx2
import pytest
from django.core.management import CommandError, call_command
from pytest_django import DjangoDbBlocker

from billing.admin.budgets import budget_states
from conversations.models import Conversation
from core.clock import now
from responses.models import TERMINAL, Decision, Response, Status
from seeding.seed import Seeded, SeedOptions, seed
from tenants import scope
from tenants.models import AuditEvent, Role, Team, UsageRecord
from tests.admin.rows import member, page_url, text
from tests.support.api import Api, Caller, ok
from tests.support.sampling import SEED, sampled, sized
from tests.support.site_client import SiteClient
from tests.support.streams import assert_stream_equals_stored
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seeded(web: WebProcess, django_db_blocker: DjangoDbBlocker) -> Seeded:
    """A small seeded platform."""
    with django_db_blocker.unblock():
        return seed(SeedOptions(responses=sized(110, full=600), teams=2, label="seeded", seed=SEED))


@pytest.fixture
def rows(seeded: Seeded, database: None) -> list[Response]:
    """Responses of the first team."""
    team = seeded.tenants[0].team
    with scope.team(team.pk):
        return list(Response.objects.filter(team=team).select_related("team"))


@pytest.fixture
def seeded_api(seeded: Seeded, web: WebProcess, http: httpx2.Client) -> Api:
    """API client with a key of the first team."""
    tenant = seeded.tenants[0]
    return Api(http, url=web.url, caller=Caller(team=tenant.team, key=tenant.keys[0], secret=tenant.secret))


def test_responses_of_every_kind_are_created(rows: list[Response]) -> None:
    statuses = Counter(row.status for row in rows)
    assert set(statuses) == set(Status.values)
    assert {row.mode for row in rows} == {"json", "stream"}
    assert any(row.background for row in rows)
    assert any(row.previous_response_id for row in rows)
    assert any(row.tool_calls for row in rows)
    assert {"rate_limit_exceeded", "server_error"} & {row.error_code for row in rows}


def test_approvals_wait_are_decided_and_have_expired(seeded: Seeded, database: None) -> None:
    tenant = seeded.tenants[0]
    client = member(tenant.team, Role.TEAM_LEAD)
    for state in ("waiting", "decided", "expired"):
        page = text(client.get(f"/admin/approvals/?state={state}"))
        assert "_issue</a>" in page
    with scope.team(tenant.team.pk):
        decisions = list(Decision.objects.filter(team=tenant.team, expires_at__isnull=False).select_related("response"))
        audited = set(AuditEvent.objects.filter(action__startswith="approval.").values_list("target", flat=True))
    # Nobody gets mails or webhook events about them.
    assert all(row.announced_at for row in decisions)
    assert {row.pk for row in decisions if row.state != "asked"} == audited
    endings = {row.state: row.response.status for row in decisions}
    assert endings == {"asked": "in_progress", "granted": "completed", "denied": "completed", "expired": "failed"}
    assert all((row.state == "asked") == row.response.awaits_decision for row in decisions)


def test_every_response_can_be_retrieved_through_the_api(rows: list[Response], seeded_api: Api) -> None:
    for row in rows:
        assert seeded_api.retrieve(row.pk)["status"] == row.status
        assert seeded_api.input_items(row.pk)


def test_every_event_log_can_be_replayed(rows: list[Response], seeded_api: Api) -> None:
    for row in sampled([row for row in rows if row.status in TERMINAL], 20, key="event logs"):
        with seeded_api.follow(row.pk) as live:
            events = live.rest()
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        if row.status != Status.CANCELLED:
            assert_stream_equals_stored(events, seeded_api.retrieve(row.pk))


def test_conversations_can_be_listed_through_the_api(seeded: Seeded, database: None, seeded_api: Api) -> None:
    with scope.team(seeded.tenants[0].team.pk):
        talks = list(Conversation.objects.filter(team=seeded.tenants[0].team))
    longest = max(talks, key=lambda talk: talk.next_position)
    assert len(talks) > 1
    assert longest.next_position > sized(20, full=30)
    page = ok(seeded_api.get(f"/conversations/{longest.pk}/items", limit=100))
    assert len(page["data"]) == min(100, longest.next_position)


def test_usage_records_match_the_responses(rows: list[Response]) -> None:
    with scope.team(rows[0].team_id):
        spent = UsageRecord.objects.filter(endpoint="responses")
        tokens = Counter({row.object_id: 0 for row in spent})
        for record in spent:
            tokens[record.object_id] += record.output_tokens
    assert tokens == {row.pk: row.output_tokens for row in rows if row.pk in tokens}
    assert len(tokens) > len(rows) / 2


def test_no_day_has_a_large_part_of_the_responses(rows: list[Response]) -> None:
    by_day = Counter(row.created_at.date() for row in rows)
    assert max(by_day.values()) <= 0.27 * len(rows)
    assert len(by_day) > 10


def test_teams_have_budgets_and_one_is_near_its_limit(seeded: Seeded, database: None) -> None:
    with scope.every_team():
        states = budget_states(teams=[tenant.team.pk for tenant in seeded.tenants], at=now())
    of_teams = {state.budget.team_id: state for state in states if state.budget.limit_set.api_key_id is None}
    first, second = (of_teams[tenant.team.pk] for tenant in seeded.tenants)
    # In the first hours of a month that begins on a Monday, nothing has been spent in any period.
    assert 90 <= first.percent < 100 or not first.spent
    assert second.percent < 70
    assert len(states) == 4


def test_the_page_of_every_response_opens(rows: list[Response]) -> None:
    lead = member(rows[0].team, Role.TEAM_LEAD)
    assert {lead.get(page_url(row)).status_code for row in rows} == {200}


def test_the_response_list_opens(rows: list[Response]) -> None:
    page = text(member(rows[0].team).get("/admin/responses/response/?period=30d"))
    assert len(re.findall(r"resp_[0-9a-v]{28}", page)) > 20


def test_the_created_users_can_sign_in(seeded: Seeded, database: None) -> None:
    for person in seeded.tenants[0].people:
        assert SiteClient().login(username=person.username, password=person.password)


def test_seeding_a_platform_in_use_requires_confirmation(seeded: Seeded, caller: Caller) -> None:
    with pytest.raises(CommandError, match="--yes"):
        call_command("seed_demo", responses=1)


@pytest.mark.nightly
def test_the_same_seed_creates_other_teams_with_equal_content(seeded: Seeded, database: None) -> None:
    output = io.StringIO()
    call_command("seed_demo", responses=12, teams=1, seed=7, yes=True, stdout=output)
    call_command("seed_demo", responses=12, teams=1, seed=7, yes=True, stdout=output)
    names = re.findall(r"^(.*): key", output.getvalue(), re.MULTILINE)
    assert len(set(names)) == 2
    with scope.every_team():
        first, second = (
            sorted(Response.objects.filter(team__name=name).values_list("input_preview", "status")) for name in names
        )
        assert Team.objects.filter(name__in=names).count() == 2
    assert first == second
