"""Decisions for which responses wait: mails, webhook events, the list of the command, and expiry."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import Settings

from core.clock import now
from responses.lifecycle import queue
from responses.lifecycle.decisions import expiry
from responses.lifecycle.decisions.decide import Answer, decide
from responses.models import Decision, Response
from responses.runs.decisions import notices
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.models import AuditEvent, Role
from tests.support.api import Caller, MakeCaller
from tests.support.decisions import add_decision, stored, waits
from tests.support.mail import add_person, mails_of
from tests.support.webhooks import add_endpoint, deliveries_of


def make_decision(decision: Decision, *, approve: bool = True) -> None:
    """Decide as a key of the team."""
    decide(
        team_id=decision.team_id,
        response_id=decision.response_id,
        decision_id=decision.pk,
        answer=Answer(approve=approve),
        actor="key:test",
        request=RequestInfo(request_id="req_1"),
    )


@pytest.fixture
def mail_settings(settings: Settings) -> None:
    """A configured mail server, which nothing connects to."""
    settings.EMAIL_HOST, settings.PUBLIC_URL = "127.0.0.1", "https://platform.example.com"


def test_a_request_is_announced_once_by_mail_and_webhook(caller: Caller, mail_settings: None) -> None:
    lead = add_person(caller)
    add_person(caller, Role.DEVELOPER)
    add_endpoint(caller, "https://a.example/", "approval.requested")
    decision = add_decision(caller, arguments='{"title":"Secret dinner"}')
    for _ in range(2):
        notices.announce_requests(response_id=decision.response_id)
        notices.announce_requests()
    [mail] = mails_of(caller)
    url = f"https://platform.example.com/admin/approvals/{decision.pk}/"
    assert (mail.address, url in mail.text, "Secret" in mail.text) == (lead.email, True, False)
    assert "box.note" in mail.subject
    [delivery] = deliveries_of(caller)
    assert (delivery.event_type, delivery.object_id) == ("approval.requested", decision.pk)
    assert (delivery.data["response_id"], delivery.data["url"]) == (decision.response_id, url)


@pytest.mark.parametrize("approve", [True, False])
def test_a_decision_is_sent_to_webhooks(caller: Caller, approve: bool) -> None:
    add_endpoint(caller, "https://a.example/", "approval.decided")
    decision = add_decision(caller)
    make_decision(decision, approve=approve)
    [delivery] = deliveries_of(caller)
    assert (delivery.object_id, delivery.data["decision"]) == (decision.pk, "granted" if approve else "denied")


def test_a_decision_about_a_call_of_a_completed_response_is_not_announced(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/", "approval.requested")
    add_decision(caller, expires_at=None)
    notices.announce_requests()
    assert deliveries_of(caller) == []


def test_the_command_lists_what_waits(caller: Caller, make_caller: MakeCaller) -> None:
    decision, foreign = add_decision(caller), add_decision(make_caller())
    decided = add_decision(caller)
    make_decision(decided)
    output = StringIO()
    call_command("approvals", "--json", "--team", caller.team.name, stdout=output)
    [shown] = json.loads(output.getvalue())
    assert shown == {
        "id": decision.pk,
        "kind": "approval",
        "team": caller.team.pk,
        "response": decision.response_id,
        "tool": "box.note",
        "arguments": ["title"],
        "since": decision.asked_at.isoformat(),
        "until": decision.expires_at.isoformat() if decision.expires_at else None,
    }
    everything = StringIO()
    call_command("approvals", "--json", stdout=everything)
    assert {decision.pk, foreign.pk} <= {row["id"] for row in json.loads(everything.getvalue())}
    with pytest.raises(CommandError):
        call_command("approvals", "--team", "unknown")


def test_only_expired_decisions_expire(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/", "approval.decided")
    late, fresh = add_decision(caller, expires_at=now() - timedelta(seconds=1)), add_decision(caller)
    assert expiry.expire_decisions() >= 1
    assert (stored(late).state, stored(fresh).state) == ("expired", "asked")
    assert (waits(late), waits(fresh)) == (False, True)
    with scope.team(caller.team.pk):
        response = Response.objects.get(pk=late.response_id)
        actions = set(AuditEvent.objects.filter(actor=expiry.ACTOR).values_list("action", flat=True))
    assert (response.status, response.error_code) == ("failed", "approval_expired")
    assert actions == {"approval.expired", "response.failed"}
    [delivery] = deliveries_of(caller)
    assert (delivery.object_id, delivery.data["decision"]) == (late.pk, "expired")


@pytest.mark.usefixtures("no_worker")
def test_claims_do_not_read_waiting_responses(caller: Caller) -> None:
    decisions = [add_decision(caller) for _ in range(3)]
    mine = {decision.response_id for decision in decisions}
    assert mine.isdisjoint(claim.id for claim in queue.claim(slots=50, running=[]))
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'response_claimable_by_team'")
        ((definition,),) = cursor.fetchall()
    assert "waits_until IS NULL" in definition
    make_decision(decisions[0])
    claimed = {claim.id for claim in queue.claim(slots=50, running=[])}
    assert mine & claimed == {decisions[0].response_id}
