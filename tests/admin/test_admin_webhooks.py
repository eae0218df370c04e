"""Webhooks in the admin: endpoints with their secret shown once, deliveries with every attempt."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client

from core.clock import now
from responses.webhooks.models import DisabledReason, WebhookEndpoint
from tenants import scope
from tenants.models import AuditEvent
from tenants.models.notifications import DeliveryState
from tests.admin.rows import text
from tests.support.api import Caller
from tests.support.webhooks import (
    add_endpoint,
    announce,
    change_deliveries,
    change_endpoint,
    deliveries_of,
    endpoint_of,
)

ENDPOINTS = "/admin/responses/webhookendpoint/"
DELIVERIES = "/admin/responses/webhookdelivery/"
SETTINGS = {"name": "orders", "url": "https://example.com/hook", "event_types": ["response.completed"]}
ATTEMPT = {"at": "2026-11-21T12:00:00+00:00", "status": 503, "ms": 12, "error": "", "body": "<b>not today</b>"}


def page_url(endpoint: WebhookEndpoint, action: str = "change") -> str:
    """Return the URL of the page of an endpoint, or of one of its actions."""
    return f"{ENDPOINTS}{endpoint.pk}/{action}/"


def secret_on(answer: Any) -> str:
    """Return the secret that a page shows."""
    found = re.search(r'<code id="secret"[^>]*>(whsec_[^<]+)</code>', text(answer))
    assert found is not None, "no secret on the page"
    return found[1]


def messages_of(answer: Any) -> str:
    """Return the messages for the user."""
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def audited(caller: Caller) -> list[str]:
    """Return the audit actions of users on the team's webhooks."""
    with scope.team(caller.team.pk):
        lines = AuditEvent.objects.filter(actor__startswith="user:", action__startswith="webhook_").order_by("pk")
        return list(lines.values_list("action", flat=True))


def test_a_new_endpoint_shows_its_secret_once(lead: Client, caller: Caller) -> None:
    answer = lead.post(f"{ENDPOINTS}add/", {**SETTINGS, "team": caller.team.pk})
    made = endpoint_of(caller)
    assert secret_on(answer) == made.secret
    assert (made.name, made.url, made.event_types) == ("orders", SETTINGS["url"], ["response.completed"])
    for later in (lead.get(ENDPOINTS), lead.get(page_url(made))):
        assert made.secret not in text(later)
    assert f"whsec_…{made.secret[-4:]}" in text(later)
    assert audited(caller) == ["webhook_endpoint.created"]


@pytest.mark.parametrize("url", ["http://example.com/", "https://10.0.0.1/", "nonsense"])
def test_unreachable_urls_are_rejected(lead: Client, caller: Caller, url: str) -> None:
    answer = lead.post(f"{ENDPOINTS}add/", {**SETTINGS, "team": caller.team.pk, "url": url})
    assert "The URL is not allowed" in text(answer)
    with scope.team(caller.team.pk):
        assert not WebhookEndpoint.objects.exists()


def test_a_lead_changes_an_endpoint(lead: Client, caller: Caller) -> None:
    made = add_endpoint(caller, "https://a.example/")
    assert lead.post(page_url(made), {**SETTINGS, "name": "bills"}).status_code == 302
    changed = endpoint_of(caller)
    assert (changed.name, changed.url, changed.secret) == ("bills", SETTINGS["url"], made.secret)
    assert audited(caller) == ["webhook_endpoint.updated"]


def test_rotating_can_keep_the_previous_secret(lead: Client, caller: Caller) -> None:
    made = add_endpoint(caller, "https://a.example/")
    assert "24 hours" in text(lead.get(page_url(made, "rotate")))
    shown = secret_on(lead.post(page_url(made, "rotate"), {"keep_old": "on"}))
    row = endpoint_of(caller)
    assert (row.secret, row.previous_secret) == (shown, made.secret)
    secret_on(lead.post(page_url(made, "rotate"), {}))
    assert endpoint_of(caller).previous_secret == ""


def test_an_endpoint_can_be_disabled_and_enabled(lead: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    for enabled in (False, True):
        assert lead.get(page_url(endpoint, "switch")).status_code == 200
        lead.post(page_url(endpoint, "switch"))
        assert endpoint_of(caller).enabled is enabled
    assert audited(caller) == ["webhook_endpoint.disabled", "webhook_endpoint.enabled"]


def test_a_disabled_endpoint_shows_the_reason(lead: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    change_endpoint(caller, enabled=False, disabled_at=now(), disabled_reason=DisabledReason.GONE)
    assert "the endpoint responded with 410 Gone" in text(lead.get(page_url(endpoint)))
    assert "Endpoint returned 410 Gone" in text(lead.get(ENDPOINTS))


def test_an_unreachable_endpoint_fails_the_test(lead: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://127.0.0.1/")
    assert "response.completed" in text(lead.get(page_url(endpoint, "test")))
    answer = lead.post(page_url(endpoint, "test"), {"event_type": "response.completed"})
    assert "Test failed" in messages_of(answer)


def test_deleting_an_endpoint_deletes_its_deliveries(lead: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    announce(caller)
    assert lead.post(page_url(endpoint, "delete"), {"post": "yes"}).status_code == 302
    assert deliveries_of(caller) == []
    assert audited(caller) == ["webhook_endpoint.deleted"]


def test_the_list_shows_the_success_rate(lead: Client, caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    for _ in range(3):
        announce(caller)
    over = {"state": DeliveryState.DELIVERED, "next_attempt_at": None, "attempts": 1}
    change_deliveries(caller, **over)
    announce(caller)
    with scope.team(caller.team.pk):
        deliveries_of(caller)[-1].delete()
    assert "100 % of 3" in text(lead.get(ENDPOINTS))


def test_attempts_of_a_delivery_are_escaped(lead: Client, caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    announce(caller, object_id="resp_12")
    change_deliveries(caller, attempts=1, history=[ATTEMPT], last_status=503, last_ms=12, last_body=ATTEMPT["body"])
    (delivery,) = deliveries_of(caller)
    for url in (DELIVERIES, f"{DELIVERIES}{delivery.pk}/change/"):
        page = text(lead.get(url))
        assert [word in page for word in (delivery.event_id, "resp_12", "503", "&lt;b&gt;not today")] == [True] * 4
        assert "<b>not today" not in page
    assert delivery.event_id in text(lead.get(DELIVERIES, {"q": "resp_12"}))
    assert delivery.event_id not in text(lead.get(DELIVERIES, {"q": "resp_13"}))


def test_a_delivery_can_be_resent(lead: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    announce(caller)
    change_deliveries(caller, state=DeliveryState.FAILED, next_attempt_at=None)
    resend = f"{DELIVERIES}{deliveries_of(caller)[0].pk}/resend/"
    assert "again with the same ID" in text(lead.get(resend))
    assert "being resent" in messages_of(lead.post(resend))
    assert deliveries_of(caller)[0].state == DeliveryState.PENDING
    change_deliveries(caller, claimed_until=now() + timedelta(minutes=1))
    assert "already in progress" in messages_of(lead.post(resend))
    lead.post(page_url(endpoint, "switch"))
    assert "disabled" in messages_of(lead.post(resend))


@pytest.mark.parametrize("action", ["change", "delete", "test", "rotate", "switch"])
def test_only_managers_can_change_an_endpoint(developer: Client, stranger: Client, caller: Caller, action: str) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    before = endpoint_of(caller).updated_at
    wanted = {**SETTINGS, "event_type": "response.completed", "post": "yes"}
    assert developer.post(page_url(endpoint, action), wanted).status_code == 403
    assert stranger.post(page_url(endpoint, action), wanted).status_code == 404
    row = endpoint_of(caller)
    assert (row.updated_at, row.enabled, audited(caller)) == (before, True, [])


def test_filter_scripts_are_loaded_on_the_list_only(lead: Client, caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    announce(caller)
    resend = f"{DELIVERIES}{deliveries_of(caller)[0].pk}/resend/"
    assert "select2" in text(lead.get(DELIVERIES))
    assert "select2" not in text(lead.get(resend))


def test_developers_read_endpoints_of_their_own_team_only(developer: Client, stranger: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    announce(caller)
    (delivery,) = deliveries_of(caller)
    assert "https://a.example/" in text(developer.get(page_url(endpoint)))
    assert developer.post(f"{DELIVERIES}{delivery.pk}/resend/").status_code == 403
    for url in (ENDPOINTS, DELIVERIES, page_url(endpoint), f"{DELIVERIES}{delivery.pk}/change/"):
        page = text(stranger.get(url, follow=True))
        assert "a.example" not in page
        assert delivery.event_id not in page
    assert stranger.post(f"{ENDPOINTS}add/", {**SETTINGS, "team": caller.team.pk}).status_code == 200
    assert stranger.post(f"{DELIVERIES}{delivery.pk}/resend/").status_code == 404


def test_query_count_of_the_lists_is_independent_of_the_rows(lead: Client, caller: Caller, count_queries: Any) -> None:
    add_endpoint(caller, "https://a.example/")
    announce(caller)
    few = [count_queries(lead, url) for url in (ENDPOINTS, DELIVERIES)]
    for _ in range(3):
        add_endpoint(caller, "https://b.example/")
        announce(caller)
    assert [count_queries(lead, url) for url in (ENDPOINTS, DELIVERIES)] == few


def test_an_operator_cannot_see_secrets(operator: Client, caller: Caller) -> None:
    endpoint = add_endpoint(caller, "https://a.example/")
    seen = {action: operator.get(page_url(endpoint, action)).status_code for action in ("change", "switch", "rotate")}
    assert seen == {"change": 200, "switch": 200, "rotate": 403}
    assert operator.post(page_url(endpoint, "rotate")).status_code == 403
    assert operator.get(f"{ENDPOINTS}add/").status_code == 403
