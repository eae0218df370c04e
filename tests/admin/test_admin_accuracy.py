"""States and figures of the console: accurate, and equal on every page."""

import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client

from conversations.models import Section
from core.clock import now
from responses.models import Response, Status
from tenants import scope, services
from tenants.models import UsageRecord
from tests.admin.rows import (
    add_events,
    add_items,
    add_response,
    add_turns,
    assistant_message,
    fragment_url,
    page_url,
    text,
    user_message,
)
from tests.support.api import Api, Caller
from tests.support.upstream import Script, ScriptedUpstream
from tests.support.workers import WorkerProcess

LIST = "/admin/responses/response/"


def add_usage(caller: Caller, **columns: object) -> None:
    """Create the usage record of a call without a price."""
    with scope.team(caller.team.pk):
        UsageRecord.objects.create(
            team=caller.team, api_key_id=caller.key.pk, endpoint="responses", model="m", upstream_id="u",
            upstream_model="m", outcome="stop", input_tokens=10, output_tokens=5, **{"occurred_at": now(), **columns},
        )  # fmt: skip


@pytest.mark.slow
def test_running_and_queued_mean_the_same_everywhere(lead: Client, caller: Caller) -> None:
    at, lease = now() - timedelta(days=2), now() + timedelta(minutes=1)
    states = [
        (Status.QUEUED, None),
        # Claimed by a worker that has not begun.
        (Status.QUEUED, lease),
        (Status.IN_PROGRESS, lease),
        # Requeued.
        (Status.IN_PROGRESS, None),
        (Status.IN_PROGRESS, lease),
    ]
    for status, until in states:
        # Without attempts left, so that no worker of another test claims those without a lease.
        add_response(
            caller,
            status=status,
            lease_until=until,
            background=True,
            created_at=at,
            attempt=settings.BACKGROUND_ATTEMPTS,
        )
    home, live = text(lead.get("/admin/")), text(lead.get("/admin/live/"))
    assert [tile(home, title) for title in ("Running", "Queued")] == ["3", "2"]
    assert [f'data-counter="{name}">{count}<' in live for name, count in (("running", 3), ("queued", 2))] == [
        True,
        True,
    ]
    assert tile(text(lead.get(f"/admin/tenants/team/{caller.team.pk}/change/")), "Running") == "3"
    for name, count in (("in_progress", 3), ("queued", 2)):
        page = text(lead.get(LIST, {"period": "30d", "status__exact": name}))
        assert page.count('<td class="c-list-status">') == count


def tile(page: str, title: str) -> str:
    """Return the value of a tile."""
    found = re.search(rf"</span>\s*{title}\s*</div>\s*<div class=\"c-tile-value[^>]*>([^<]*)<", page)
    assert found, f"no tile {title}"
    return found[1]


@pytest.mark.parametrize(("duration", "speed"), [(139, []), (2040, ["50"])])
def test_no_speed_is_shown_below_a_tenth_of_a_second(
    duration: int, speed: list[str], lead: Client, caller: Caller
) -> None:
    response = add_response(caller, first_token_ms=40, duration_ms=duration, output_tokens=100)
    assert re.findall(r"<small>([^<]*) tokens/s</small>", text(lead.get(page_url(response)))) == speed


def test_the_events_tab_starts_with_its_table(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_events(response, 3)
    page = text(lead.get(page_url(response, tab="events")))
    assert 0 < page.index('aria-label="Events"') < page.index('aria-label="Replay"')


def test_a_model_without_a_price_has_no_cost(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_turns(response, 1)
    add_usage(caller, object_id=response.pk)
    assert '<td class="c-list-cost">No price</td>' in text(lead.get(LIST))
    page = text(lead.get(page_url(response, tab="usage")))
    assert "<dt>Cost</dt><dd>No price</dd>" in page
    assert "$0.00" not in page
    team = text(lead.get(f"/admin/tenants/team/{caller.team.pk}/change/?tab=usage"))
    assert "No price" in team
    assert "$0.00" not in team
    usage = text(lead.get("/admin/usage/", {"metric": "cost", "group": "model"}))
    assert "No price" in usage


def test_a_price_of_zero_is_a_cost(lead: Client, caller: Caller) -> None:
    add_response(caller, cost=0)
    assert '<td class="c-list-cost">$0.00</td>' in text(lead.get(LIST))


def test_a_week_has_seven_rows(lead: Client, caller: Caller) -> None:
    add_usage(caller, occurred_at=now() - timedelta(days=3))
    page = text(lead.get(f"/admin/tenants/team/{caller.team.pk}/change/?tab=usage"))
    days = [f"{now() - timedelta(days=ago):%Y-%m-%d}" for ago in reversed(range(7))]
    assert re.findall(r"\b\d{4}-\d\d-\d\d\b", page[page.index("Last 7 days") : page.index("By model")]) == days


def test_a_retry_may_use_another_model(
    developer: Client, api: Api, script: Script, caller: Caller, upstream: ScriptedUpstream, worker: WorkerProcess
) -> None:
    services.create_key(team=caller.team, spec=services.KeySpec(name="other"))
    first = api.create(model=script.say("One").model, input="Hi")
    confirm = text(developer.get(f"{LIST}{first['id']}/retry/"))
    (field,) = re.findall('<input[^>]* name="model"[^>]*>', confirm)
    assert f'value="{script.model}"' in field
    assert 'list="models"' in field
    with upstream.script() as other:
        answer = developer.post(f"{LIST}{first['id']}/retry/", {"model": other.say("Two").model})
        other.wait_for_call()
        with scope.team(caller.team.pk):
            assert Response.objects.get(pk=answer["location"].split("/")[-3]).model == other.model


def test_the_copied_link_is_short(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    page = text(lead.get(page_url(response)))
    assert f'href="http://testserver/admin/go/{response.pk}"' in page
    assert lead.get(f"/admin/go/{response.pk}", follow=True).redirect_chain[-1][0] == page_url(response)


def test_a_failed_tool_listing_is_shown_as_failed(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    listing = {"type": "mcp_list_tools", "server_label": "box", "tools": []}
    add_items(response, Section.OUTPUT, {**listing, "error": "HTTP 401"})
    page = text(lead.get(page_url(response)))
    assert "c-state-failed" in page
    assert "<b>box</b> tools not listed" in page


def test_each_text_of_a_transcript_has_its_own_direction(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_items(response, Section.INPUT, user_message("أين طردي؟"))
    add_items(response, Section.OUTPUT, assistant_message("غدا"))
    page = text(lead.get(page_url(response)))
    assert re.search(r'dir="auto"[^>]*>\s*(<p>)?أين طردي؟', page)
    assert re.search(r'dir="auto"[^>]*>\s*(<p>)?غدا', page)
    assert '<span dir="auto">أين طردي؟</span>' in text(lead.get(fragment_url(response, "summary/")))
