"""The page of an approval: its arguments, who may decide, and the decision."""

from datetime import timedelta

import orjson
import pytest
from django.test import Client
from django.urls import reverse

from conversations.models import Section
from core.clock import now
from responses.models import Decision, Response, Status
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import add_items, text
from tests.support.api import Caller
from tests.support.decisions import add_decision, stored, waits


def page_of(decision: Decision) -> str:
    return reverse("console:approval", args=[decision.pk])


def list_tools(decision: Decision, schema: dict[str, object]) -> None:
    """Store the list of the tools of the server that the call is for."""
    tool = {"name": "note", "input_schema": schema, "description": "Writes a note."}
    listed = {"type": "mcp_list_tools", "server_label": "box", "tools": [tool]}
    add_items(decision.response, Section.OUTPUT, listed)


def test_the_arguments_are_shown_without_secrets(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller, arguments='{"title":"<b>Dinner</b>","guests":["Ann","Bo"],"api_key":"sk-1"}')
    page = text(lead.get(page_of(decision)))
    assert "box.note" in page
    assert "&lt;b&gt;Dinner&lt;/b&gt;" in page
    assert ("Ann" in page, "Bo" in page, "sk-1" in page) == (True, True, False)
    assert ("Approve</button>" in page, "Deny</button>" in page) == (True, True)


def test_labels_and_descriptions_come_from_the_schema_of_the_tool(lead: Client, caller: Caller) -> None:
    arguments = {"pin": "0815", "party": {"size": 4, "is_outdoors": True}, "dish": "Soup"}
    decision = add_decision(caller, arguments=orjson.dumps(arguments).decode())
    party = {"type": "object", "properties": {"size": {"title": "Number of guests"}}}
    properties = {
        "dish": {"title": "Main dish", "description": "Served <hot>."},
        "party": {"anyOf": [{"$ref": "#/$defs/Party"}, {"type": "null"}]},
        "pin": {"type": "string", "format": "password"},
    }
    list_tools(decision, {"type": "object", "properties": properties, "$defs": {"Party": party}})
    page = text(lead.get(page_of(decision)))
    # In the order of the schema.
    assert page.index("Main dish") < page.index("Number of guests") < page.index("Is outdoors")
    assert "Served &lt;hot&gt;." in page
    assert ("Yes" in page, "0815" in page) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("{}", "The call has no arguments."),
        ('["first", "second"]', "second"),
        ('{"text": ""}', "empty text"),
        ('{"text": null}', "none"),
        ('{"deep": {"a": {"b": {"c": {"d": {"e": {"f": "bottom"}}}}}}}', "bottom"),
        (orjson.dumps({"numbers": list(range(150))}).decode(), "50 more"),
        (orjson.dumps({"text": "word " * 200}).decode(), "1,000 characters"),
    ],
)
def test_arguments_of_any_shape_are_shown(lead: Client, caller: Caller, arguments: str, shown: str) -> None:
    assert shown in text(lead.get(page_of(add_decision(caller, arguments=arguments))))


def test_a_schema_that_refers_to_itself_is_followed_as_deep_as_the_value(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller, arguments='{"node": {"node": {"node": {"leaf": "end"}}}}')
    node = {"$ref": "#/$defs/Node", "title": "Branch"}
    nodes = {"Node": {"type": "object", "properties": {"node": node}}, "Loop": {"$ref": "#/$defs/Loop"}}
    list_tools(decision, {"type": "object", "properties": {"node": node}, "$defs": nodes})
    page = text(lead.get(page_of(decision)))
    assert page.count("Branch") == 3
    assert "end" in page


@pytest.mark.parametrize(("answer", "state"), [("yes", "granted"), ("no", "denied")])
def test_a_lead_decides(lead: Client, caller: Caller, answer: str, state: str) -> None:
    decision = add_decision(caller)
    page = text(lead.post(page_of(decision), {"approve": answer, "reason": "Seen."}, follow=True))
    row = stored(decision)
    assert (row.state, row.reason, row.decided_by[:5]) == (state, "Seen.", "user:")
    assert not waits(decision)
    # The inbox follows, where the decision waits no more.
    assert f"The call was {'approved' if state == 'granted' else 'denied'}." in page
    assert decision.pk not in page
    page = text(lead.get(page_of(decision)))
    assert ("Approve</button>" in page, row.decided_by in page, "Seen." in page) == (False, True, True)
    with scope.team(caller.team.pk):
        line = AuditEvent.objects.get(target=decision.pk)
    assert (line.action, line.actor) == (f"approval.{state}", row.decided_by)
    again = text(lead.post(page_of(decision), {"approve": "no", "reason": ""}, follow=True))
    assert "has already been decided" in again
    assert stored(decision).state == state


def test_an_operator_decides_without_reading_the_arguments(operator: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    assert "Dinner" not in text(operator.get(page_of(decision)))
    operator.post(page_of(decision), {"approve": "yes", "reason": ""})
    assert stored(decision).state == "granted"


def test_others_cannot_decide(
    developer: Client, auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller
) -> None:
    decision = add_decision(caller)
    assert "Approve</button>" not in text(developer.get(page_of(decision)))
    for client in (developer, auditor, platform_auditor):
        assert client.post(page_of(decision), {"approve": "yes", "reason": ""}).status_code == 403
    assert stranger.post(page_of(decision), {"approve": "yes", "reason": ""}).status_code == 404
    assert stranger.get(page_of(decision)).status_code == 404
    assert stored(decision).state == "asked"


def test_an_invalid_answer_decides_nothing(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    assert lead.post(page_of(decision), {"approve": "perhaps"}).status_code == 200
    assert stored(decision).state == "asked"


def test_the_reason_and_the_arguments_are_hidden_from_viewers_without_content(auditor: Client, caller: Caller) -> None:
    decision = add_decision(caller, state="denied", answered_at=now(), reason="Too early.")
    page = text(auditor.get(page_of(decision)))
    assert ("Content hidden" in page, "Too early." in page, "Dinner" in page) == (True, False, False)


@pytest.mark.parametrize("client", ["lead", "developer"])
def test_an_approval_that_is_over_has_no_buttons(client: str, caller: Caller, request: pytest.FixtureRequest) -> None:
    browser: Client = request.getfixturevalue(client)
    late = add_decision(caller, expires_at=now() - timedelta(seconds=1))
    cancelled = add_decision(caller)
    with scope.team(caller.team.pk):
        ended = Response.objects.filter(pk=cancelled.response_id)
        ended.update(status=Status.CANCELLED, ended_at=now(), waits_until=None)
    for decision, shown in ((late, "Expired"), (cancelled, "The response has ended")):
        page = text(browser.get(page_of(decision)))
        assert (shown in page, "Approve</button>" in page) == (True, False)


def test_a_decision_that_comes_too_late_says_so(lead: Client, caller: Caller) -> None:
    late = add_decision(caller, expires_at=now() - timedelta(seconds=1))
    page = text(lead.post(page_of(late), {"approve": "yes", "reason": ""}, follow=True))
    assert "has expired" in page
    assert stored(late).state == "asked"
