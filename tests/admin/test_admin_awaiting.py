"""The label of responses that await approval: in lists, on the page of the response, and among the running jobs."""

from django.test import Client
from django.urls import reverse

from responses.models import Decision
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import page_url, text
from tests.support.api import Caller
from tests.support.decisions import add_decision


def page_of(decision: Decision) -> str:
    return reverse("console:approval", args=[decision.pk])


def test_lists_and_pages_show_that_a_response_awaits_approval(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    listed = text(lead.get("/admin/responses/response/?waits=approval&period=24h"))
    assert decision.response_id in listed
    assert "Awaiting approval" in listed
    page = text(lead.get(page_url(decision.response)))
    assert "Awaiting approval" in page
    assert f"{page_of(decision)}?from=response" in page
    live = lead.get("/admin/live/rows/").json()
    (row,) = live["set"]
    assert (row["id"], row["state"], row["approval"]) == (decision.response_id, "Awaiting approval", page_of(decision))
    assert (row["stuck"], live["counters"]["awaiting"], live["counters"]["queued"]) == ("", "1", "0")


def test_a_response_that_waits_no_more_has_its_own_status(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    lead.post(page_of(decision), {"approve": "yes", "reason": ""})
    assert decision.response_id not in text(lead.get("/admin/responses/response/?waits=approval&period=24h"))
    assert "Awaiting approval" not in text(lead.get(page_url(decision.response)))


def test_a_decision_made_on_the_page_of_the_response_returns_to_it(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    url = page_url(decision.response)
    link = f"{page_of(decision)}?from=response"
    assert link in text(lead.get(url))
    assert lead.post(link, {"approve": "yes", "reason": ""}).headers["Location"] == url


def test_the_audit_log_shows_a_decision_and_links_to_it(lead: Client, admin: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    lead.post(page_of(decision), {"approve": "no", "reason": "Too expensive."})
    log = text(admin.get("/admin/tenants/auditevent/?area=approval.&period=24h"))
    assert ("approval.denied" in log, decision.pk in log) == (True, True)
    with scope.team(caller.team.pk):
        event = AuditEvent.objects.get(target=decision.pk)
    assert event.after == {"tool": "box.note", "response": decision.response_id, "reason": "Too expensive."}
    assert "Too expensive." in text(admin.get(f"/admin/tenants/auditevent/{event.pk}/change/"))
    assert admin.get(f"/admin/go/{decision.pk}").headers["Location"] == page_of(decision)


def test_an_approval_of_another_team_is_not_found(stranger: Client, caller: Caller) -> None:
    assert stranger.get(f"/admin/go/{add_decision(caller).pk}", follow=True).status_code == 404
