"""Tabs of the response page: events, request and response as JSON, usage, webhooks, audit."""

import json
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from conversations.models import Section
from core.ids import new_id
from engine.events.compression import compress
from responses.models import EventBatch, Response
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from tenants import scope
from tenants.models import AuditEvent, UsageRecord
from tests.admin.conftest import CountQueries
from tests.admin.rows import (
    add_events,
    add_items,
    add_response,
    assistant_message,
    fragment_url,
    page_url,
    text,
    user_message,
)
from tests.support.api import Caller

TABS = ("transcript", "timeline", "events", "request", "response", "usage", "attempts", "webhooks", "audit")
GATED = ("documents/request/", "documents/response/", "snippets/curl/", "snippets/python/")


@pytest.fixture
def response(caller: Caller) -> Response:
    """A stored response with one input and one output message."""
    kept = {"instructions": "Be SECRET.", "tools": [], "text": {"format": {"type": "text"}}, "id": "x"}
    made = add_response(caller, parameters=kept, options={"sent": [], "include": []})
    add_items(made, Section.INPUT, user_message("A SECRET question"))
    add_items(made, Section.OUTPUT, assistant_message("A SECRET answer"))
    return made


def tab(client: Client, response: Response, name: str, query: str = "") -> str:
    return text(client.get(page_url(response, tab=name) + query))


@pytest.mark.parametrize("name", TABS)
def test_every_tab_hides_content_without_content_access(
    name: str, admin: Client, operator: Client, response: Response
) -> None:
    add_events(response, 3)
    assert f'id="tab-{name}" aria-controls="panel" aria-selected="true"' in tab(admin, response, name)
    assert "SECRET" not in tab(operator, response, name)


@pytest.mark.parametrize("path", GATED)
def test_documents_are_refused_without_content_access(
    path: str, auditor: Client, stranger: Client, lead: Client, response: Response
) -> None:
    assert "SECRET" in text(lead.get(fragment_url(response, path)))
    assert auditor.get(fragment_url(response, path)).status_code == 403
    assert stranger.get(fragment_url(response, path)).status_code == 404


@pytest.mark.parametrize("path", ["log/", *GATED])
def test_reading_by_a_non_member_is_audited(path: str, admin: Client, response: Response) -> None:
    assert admin.get(fragment_url(response, path)).status_code == 200
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=response.pk).exists()


def test_an_unstored_response_has_no_documents(lead: Client, caller: Caller) -> None:
    response = add_response(caller, stored=False, parameters={})
    for path in GATED:
        assert lead.get(fragment_url(response, path)).status_code == 404
    for name in TABS:
        assert "request set store to false" in tab(lead, response, name) or name not in {"request", "response"}


# -- events ------------------------------------------------------------------------------------------------------------


def test_events_come_in_pages_of_500(lead: Client, response: Response) -> None:
    add_events(response, 600)
    first, second = tab(lead, response, "events"), tab(lead, response, "events", "&from=500")
    assert [words in first for words in ("600 events", 'data-event="499"', 'data-event="500"')] == [True, True, False]
    assert [words in second for words in ('data-event="499"', 'data-event="500"')] == [False, True]


def test_events_can_be_filtered_by_type(lead: Client, response: Response) -> None:
    add_log(response, {"type": "response.created"}, {"type": "response.completed"})
    page = tab(lead, response, "events", "&type=response.completed")
    assert [f'data-event="{number}"' in page for number in (0, 1)] == [False, True]
    assert "response.created (1)" in page


def test_an_expired_log_names_the_retention_period(lead: Client, response: Response) -> None:
    assert "keeps event logs for 24 hours after a response ends" in tab(lead, response, "events")


def add_log(response: Response, *bodies: dict[str, Any]) -> None:
    """Create an event log with one batch per event."""
    with scope.team(response.team_id):
        for number, body in enumerate(bodies):
            data = json.dumps({**body, "sequence_number": number})
            frames = f"event: {body['type']}\ndata: {data}\n\n"
            EventBatch.objects.create(
                team_id=response.team_id,
                response=response,
                first_sequence=number,
                last_sequence=number,
                compressed=compress(frames.encode()),
            )


def test_the_log_omits_event_data_without_content_access(
    lead: Client, operator: Client, stranger: Client, response: Response
) -> None:
    add_log(response, {"type": "response.output_text.delta", "delta": "SECRET"})
    url = fragment_url(response, "log/")
    (event,) = lead.get(url).json()["events"]
    assert json.loads(event["data"])["delta"] == "SECRET"
    bare = operator.get(url).json()
    assert bare["readable"] is False
    assert bare["events"][0].keys() == {"n", "type", "size", "t"}
    assert b"SECRET" not in operator.get(url, {"whole": 1}).content
    assert stranger.get(url).status_code == 404


def test_pages_of_the_log_join_without_gaps(lead: Client, response: Response) -> None:
    add_log(response, *({"type": "x", "delta": str(n) * 30_000} for n in range(25)))
    numbers: list[int] = []
    following: int | None = 0
    while following is not None:
        piece = lead.get(fragment_url(response, "log/"), {"from": following}).json()
        assert len(json.dumps(piece)) < 1_000_000
        numbers += [event["n"] for event in piece["events"]]
        following = piece["next"]
    assert numbers == list(range(25))


def test_a_large_event_is_omitted_and_can_be_downloaded(lead: Client, response: Response) -> None:
    add_log(response, {"type": "response.completed", "text": "x" * 70_000})
    url = fragment_url(response, "log/")
    (event,) = lead.get(url).json()["events"]
    assert (event["large"], "data" in event) == (True, False)
    whole = lead.get(url, {"from": 0, "whole": 1})
    assert len(json.loads(whole.content)["text"]) == 70_000
    assert whole["Content-Disposition"].startswith("attachment")


def test_reading_the_end_of_a_log_skips_its_beginning(
    lead: Client, response: Response, count_queries: CountQueries
) -> None:
    add_log(response, *({"type": "x"} for _ in range(90)))
    assert count_queries(lead, fragment_url(response, "log/?from=85")) < count_queries(
        lead, fragment_url(response, "log/")
    )


# -- documents ---------------------------------------------------------------------------------------------------------


def test_the_request_document_has_the_sent_parameters_without_secrets(lead: Client, caller: Caller) -> None:
    kept = {
        "instructions": "Be kind.",
        "temperature": 0.25,
        "top_p": 1.0,
        "tools": [{"type": "mcp", "server_label": "box", "headers": {"X-Key": "HUSH"}}],
    }
    columns = {"conversation_id": "conv_1", "mode": "stream", "background": True}
    response = add_response(caller, parameters=kept, options={"sent": ["temperature"]}, **columns)
    add_items(response, Section.INPUT, user_message("my key is sk-HUSHHUSHHUSHHUSH"))
    body = lead.get(fragment_url(response, "documents/request/")).json()
    assert (body["model"], body["instructions"], body["temperature"]) == ("m", "Be kind.", 0.25)
    assert (body["conversation"], body["stream"], body["background"]) == ("conv_1", True, True)
    assert "top_p" not in body
    assert "HUSH" not in json.dumps(body)
    assert "HUSH" not in tab(lead, response, "request")


def test_the_response_document_is_the_public_object(lead: Client, response: Response) -> None:
    body = lead.get(fragment_url(response, "documents/response/")).json()
    assert (body["status"], body["output"][0]["content"][0]["text"]) == ("completed", "A SECRET answer")
    assert "&quot;A SECRET answer&quot;" in tab(lead, response, "response")


def test_long_documents_are_loaded_on_demand(lead: Client, response: Response) -> None:
    add_items(response, Section.OUTPUT, assistant_message("a" * 70_000))
    page = tab(lead, response, "response")
    assert ">Load<" in page
    assert len(page) < 64_000
    url = fragment_url(response, "documents/response/")
    assert "data-json-load" in page
    assert "a" * 70_000 in text(lead.get(url))
    assert lead.get(url, {"download": 1})["Content-Disposition"].startswith("attachment")


def test_hundreds_of_items_are_not_read_for_the_tab(
    lead: Client, response: Response, count_queries: CountQueries
) -> None:
    add_items(response, Section.OUTPUT, *[assistant_message("short")] * 250)
    assert "251 items" in tab(lead, response, "response")
    assert count_queries(lead, page_url(response, tab="response")) <= 15


def test_unknown_documents_and_snippets_are_not_found(lead: Client, response: Response) -> None:
    for path in ("documents/secrets/", "snippets/ruby/"):
        assert lead.get(fragment_url(response, path)).status_code == 404


# -- usage, webhooks, audit --------------------------------------------------------------------------------------------


def test_usage_lists_records_with_prices_and_totals(lead: Client, response: Response) -> None:
    columns = {"model": "m", "upstream_id": "u", "upstream_model": "big-one", "outcome": "stop"}
    tokens = {"input_tokens": 1000, "cached_tokens": 200, "output_tokens": 50, "reasoning_tokens": 7}
    cost = {
        "cost": Decimal("0.0125"),
        "prices": [{"dimension": "input", "amount": "2.5"}, {"dimension": "output", "amount": "10"}],
    }
    with scope.team(response.team_id):
        for turn in range(2):
            UsageRecord.objects.create(
                team_id=response.team_id,
                object_id=response.pk,
                turn=turn,
                endpoint="responses",
                **columns,
                **tokens,
                **cost,
            )
    page = tab(lead, response, "usage")
    for words in ("big-one", "2,000", "$0.0125", "$0.025", "Input $2.50 per million · Output $10.00 per million"):
        assert words in page, words


def test_the_cost_column_is_hidden_without_prices(lead: Client, response: Response) -> None:
    with scope.team(response.team_id):
        UsageRecord.objects.create(
            team_id=response.team_id,
            object_id=response.pk,
            model="m",
            upstream_id="u",
            upstream_model="m",
            outcome="stop",
        )
    page = tab(lead, response, "usage")
    assert "prices were not set" in page
    assert "Cost</th>" not in page


def test_webhook_deliveries_are_linked(lead: Client, response: Response) -> None:
    with scope.team(response.team_id):
        endpoint = WebhookEndpoint.objects.create(
            id=new_id("we"), team_id=response.team_id, name="till", url="https://till.example/", secret="x"
        )
        delivery = WebhookDelivery.objects.create(
            event_id=new_id("evt"), team_id=response.team_id, endpoint=endpoint, event_type="response.completed",
            object_id=response.pk, attempts=2, last_status=503, last_ms=12,
        )  # fmt: skip
    page = tab(lead, response, "webhooks")
    for words in ("till", "response.completed", "503 after 12 ms", f"webhookdelivery/{delivery.pk}/change/"):
        assert words in page, words


def test_the_audit_tab_requires_access_to_the_audit_log(
    admin: Client, lead: Client, developer: Client, response: Response
) -> None:
    admin.get(page_url(response))
    assert "content.viewed" in tab(lead, response, "audit")
    assert 'id="tab-audit"' not in tab(developer, response, "audit")
    assert "content.viewed" not in tab(developer, response, "audit")


@pytest.mark.parametrize("name", ["usage", "webhooks", "audit", "events", "request"])
def test_query_count_of_a_tab_is_independent_of_its_size(
    name: str, lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    def full(size: int) -> str:
        made = add_response(caller, parameters={"instructions": None}, options={})
        add_items(made, Section.INPUT, *[user_message("in")] * size)
        add_log(made, *[{"type": "x"}] * size)
        with scope.team(made.team_id):
            for _ in range(size):
                AuditEvent.objects.create(team_id=made.team_id, actor="user:x", action="x.y", target=made.pk)
                UsageRecord.objects.create(
                    team_id=made.team_id, object_id=made.pk, model="m", upstream_id="u", upstream_model="m"
                )
        return page_url(made, tab=name)

    assert count_queries(lead, full(9)) == count_queries(lead, full(1)) <= 20


@pytest.mark.parametrize(
    "path", ["summary/", "log/", "chain/", "documents/request/", "snippets/curl/", "spans/turn-1/"]
)
def test_fragments_accept_no_post(path: str, lead: Client, caller: Caller) -> None:
    assert lead.post(fragment_url(add_response(caller), path)).status_code == 405
