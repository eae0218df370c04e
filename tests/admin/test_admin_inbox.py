"""The inbox of approvals: what it lists, for whom, and its pages."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from core.clock import now
from core.ids import new_id
from responses.models import Decision, Response, Status
from tenants import scope
from tenants.models import Role
from tests.admin.conftest import CountQueries
from tests.admin.rows import sign_in, text
from tests.support.api import Caller, MakeCaller
from tests.support.decisions import add_decision

INBOX = "/admin/approvals/"


def page_of(decision: Decision) -> str:
    return reverse("console:approval", args=[decision.pk])


def links(client: Client, url: str) -> list[str]:
    """Return the ids of the decisions of a page, in order."""
    pieces = text(client.get(url)).split('id="call-')[1:]
    return [piece.partition('"')[0] for piece in pieces]


def test_what_expires_first_is_listed_first(lead: Client, caller: Caller) -> None:
    late = add_decision(caller, expires_at=now() + timedelta(days=3))
    soon = add_decision(caller, expires_at=now() + timedelta(hours=1))
    assert links(lead, INBOX) == [soon.pk, late.pk]
    page = text(lead.get(INBOX))
    assert (caller.team.name in page, ">note</a>" in page, "box" in page) == (True, True, True)


def test_each_state_has_its_own_view(lead: Client, caller: Caller) -> None:
    waiting = add_decision(caller)
    granted = add_decision(caller, state="granted", answered_at=now(), decided_by="user:ann")
    denied = add_decision(caller, state="denied", answered_at=now(), asked_at=now() - timedelta(days=1))
    expired = add_decision(caller, state="expired", answered_at=now())
    assert links(lead, INBOX) == [waiting.pk]
    assert links(lead, f"{INBOX}?state=decided") == [granted.pk, denied.pk]
    decided = text(lead.get(f"{INBOX}?state=decided"))
    assert ("user:ann" in decided, "Approved</b>" in decided, "Denied</b>" in decided) == (True, True, True)
    assert links(lead, f"{INBOX}?state=expired") == [expired.pk]


def test_calls_that_no_response_waits_for_are_not_listed(lead: Client, caller: Caller) -> None:
    add_decision(caller, expires_at=None)
    cancelled = add_decision(caller)
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=cancelled.response_id).update(status=Status.CANCELLED, ended_at=now())
    assert links(lead, INBOX) == []
    assert "Nothing waits for a decision." in text(lead.get(INBOX))


def test_the_kind_filter_leaves_out_other_kinds(lead: Client, caller: Caller) -> None:
    approval, question = add_decision(caller), add_decision(caller, kind="question")
    assert links(lead, f"{INBOX}?kind=question") == [question.pk]
    assert links(lead, f"{INBOX}?kind=approval") == [approval.pk]


def test_members_see_only_their_teams(lead: Client, stranger: Client, operator: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    assert links(lead, INBOX) == [decision.pk]
    assert links(stranger, INBOX) == []
    # A team of others is an unknown team.
    assert links(stranger, f"{INBOX}?team={caller.team.pk}") == []
    assert links(operator, f"{INBOX}?team={caller.team.pk}") == [decision.pk]


def test_a_member_of_several_teams_sees_them_in_one_order(make_caller: MakeCaller) -> None:
    first, second = make_caller(), make_caller()
    client = sign_in({first.team.pk: Role.TEAM_LEAD, second.team.pk: Role.AUDITOR})
    hours = [(second, 1), (first, 2), (second, 3)]
    found = [add_decision(caller, expires_at=now() + timedelta(hours=count)).pk for caller, count in hours]
    assert links(client, INBOX) == found
    assert links(client, f"{INBOX}?team={first.team.pk}") == [found[1]]
    page = text(client.get(INBOX))
    # The viewer leads only the first team.
    assert page.count(">You<") == 1
    assert page.count(">Leads of the team, operators<") == 2


@pytest.mark.parametrize(
    "query", ["?after=x", "?after=1~", "?after=9999999999999999999~a", "?state=x&kind=x", "?team=%00"]
)
def test_unknown_parameters_are_ignored(lead: Client, query: str) -> None:
    assert lead.get(f"{INBOX}{query}").status_code == 200


def test_pages_continue_behind_the_row_before(lead: Client, caller: Caller) -> None:
    at = now()
    # Many rows have the same time.
    rows = add_many(caller, 120, lambda number: at - timedelta(minutes=number // 40), state="granted")
    ids, url, pages = [], f"{INBOX}?state=decided", 0
    while url:
        ids += links(lead, url)
        pages += 1
        _, found, rest = text(lead.get(url)).partition('rel="next" href="')
        url = rest.partition('"')[0].replace("&amp;", "&") if found else ""
    assert pages == 3
    assert ids == [row.pk for row in sorted(rows, key=lambda row: (row.asked_at, row.pk), reverse=True)]


def test_a_page_far_down_reads_only_its_rows(
    lead: Client, caller: Caller, sql_of: Callable[[Client, str], str]
) -> None:
    at = now()
    rows = add_many(caller, 3000, lambda number: at - timedelta(minutes=number), state="granted")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE responses_approval")
    middle = rows[2000]
    after = round(middle.asked_at.timestamp() * 1_000_000)
    statements = sql_of(lead, f"{INBOX}?state=decided&after={after}~{middle.pk}").split("\n")
    (branch,) = [sql for sql in statements if "UNION ALL" in sql]
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT TEXT) {branch}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "decision_by_team_and_state" in plan
    assert "Sort Method" not in plan or "rows=3000" not in plan
    assert "Seq Scan" not in plan


def add_many(caller: Caller, count: int, asked_at: Callable[[int], datetime], **columns: str) -> list[Decision]:
    """Create decisions of one response."""
    first = add_decision(caller, state="withdrawn")
    rows = [
        Decision(
            id=new_id("mcpr"),
            team=caller.team,
            response_id=first.response_id,
            call_id="call_1",
            asked_at=asked_at(number),
            answered_at=now(),
            expires_at=first.expires_at,
            **columns,
        )
        for number in range(count)
    ]
    with scope.team(caller.team.pk):
        return Decision.objects.bulk_create(rows)


def test_the_refresh_returns_only_the_rows(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    fragment = text(lead.get(INBOX, headers={"HX-Request": "true"}))
    assert page_of(decision) in fragment
    assert "<html" not in fragment


def test_the_navigation_counts_what_waits(lead: Client, caller: Caller) -> None:
    assert "c-nav-count" not in text(lead.get(INBOX))
    add_decision(caller)
    assert '<span class="c-nav-count">1</span>' in text(lead.get(INBOX))
    with scope.team(caller.team.pk):
        Decision.objects.filter(team=caller.team).update(state="expired")
    add_many(caller, 130, lambda _: now(), state="asked")
    assert '<span class="c-nav-count">99+</span>' in text(lead.get(INBOX))


def test_the_number_of_queries_does_not_grow_with_the_rows(
    lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    add_decision(caller)
    lead.get(INBOX)
    before = count_queries(lead, INBOX)
    for _ in range(5):
        add_decision(caller)
    assert count_queries(lead, INBOX) == before
