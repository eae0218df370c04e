"""The page of running jobs: rows, permissions and actions."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from engine.events.compression import compress
from responses.models import EventBatch, Response, Status
from tenants import scope
from tenants.audit import lines_of
from tenants.models import AuditEvent, StaffRole
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_response, add_turns, page_url, sign_in, text
from tests.support.api import Caller, MakeCaller

# A worker would claim the rows that these tests create.
pytestmark = pytest.mark.usefixtures("no_worker")
PAGE = "/admin/live/"
ROWS = "/admin/live/rows/"
WORKER = "host:1:abc"


def running(caller: Caller, **columns: Any) -> Response:
    """A background response that a worker executes."""
    columns_of_a_run = {
        "status": Status.IN_PROGRESS,
        "background": True,
        "lease_owner": WORKER,
        "attempt": 1,
        "turns": 0,
    }
    return add_response(caller, **{**columns_of_a_run, "lease_until": now() + timedelta(seconds=25), **columns})


def queued(caller: Caller, **columns: Any) -> Response:
    """A background response that waits for a worker."""
    return add_response(caller, **{"status": Status.QUEUED, "background": True, "turns": 0, **columns})


def add_deltas(response: Response, *words: str, first: int = 2) -> None:
    """Add text deltas to the log of a run."""
    frames = "".join(
        "event: response.output_text.delta\n"
        f'data: {{"type":"response.output_text.delta","sequence_number":{number},"delta":"{word}"}}\n\n'
        for number, word in enumerate(words, first)
    )
    with scope.team(response.team_id):
        EventBatch.objects.create(
            team_id=response.team_id,
            response=response,
            first_sequence=first,
            last_sequence=first + len(words) - 1,
            compressed=compress(frames.encode()),
        )


def row_of(client: Client, response: Response) -> dict[str, Any] | None:
    """Return the row of a run on the page, or None."""
    rows = {row["id"]: row for row in client.get(ROWS).json()["set"]}
    return rows.get(response.pk)


def row(response: Response) -> Response:
    """Return the stored response."""
    with scope.team(response.team_id):
        return Response.objects.get(pk=response.pk)


def audited(response: Response) -> list[tuple[str, str]]:
    """Return the audited actions on a response, with the kind of actor."""
    with scope.team(response.team_id):
        lines = AuditEvent.objects.filter(target=response.pk).order_by("id")
        return [(line.action, line.actor.split("-")[0]) for line in lines]


def test_a_row_shows_state_worker_step_and_tokens(lead: Client, caller: Caller) -> None:
    response = running(caller, created_at=now() - timedelta(seconds=9), input_tokens=12_345, output_tokens=67, turns=2)
    add_turns(response, 2)
    add_call(response, turn=1, call_id="a", name="look_up", status="completed")
    add_call(response, turn=1, call_id="b", name="search", status="in_progress", ended_at=None)
    row = row_of(lead, response)
    assert row is not None
    assert {name: row[name] for name in ("state", "tone", "mode", "worker", "attempt", "step", "tokens")} == {
        "state": "Tool",
        "tone": "tool",
        "mode": "Background",
        "worker": WORKER,
        "attempt": 1,
        "step": "turn 2 · search",
        "tokens": "12.3k / 67",
    }
    assert [(step["name"], step["tone"]) for step in row["steps"]] == [
        ("turn 1", "good"),
        ("turn 2", "good"),
        ("look_up", "good"),
        ("search", "open"),
    ]


def test_a_row_shows_the_latest_output_and_event_number(lead: Client, caller: Caller) -> None:
    response = running(caller)
    add_deltas(response, "Once ", "upon ", "a time")
    row = row_of(lead, response)
    assert row is not None
    assert (row["preview"], row["event"]) == ("Once upon a time", 4)


def test_a_row_shows_how_long_the_run_waited_for_a_worker(lead: Client, caller: Caller) -> None:
    begun, waiting = running(caller, created_at=now() - timedelta(minutes=2)), queued(caller)
    add_deltas(begun, "Hello")
    found = {row["id"]: (row["waits"], row["wait"]) for row in lead.get(ROWS).json()["set"]}
    assert found == {begun.pk: (False, "2 min 0 s"), waiting.pk: (True, "")}


def test_waiting_runs_are_counted_and_listed_last(lead: Client, caller: Caller) -> None:
    waiting = queued(caller, created_at=now() - timedelta(seconds=30))
    response = running(caller)
    found = lead.get(ROWS).json()
    assert [row["id"] for row in found["set"]] == [response.pk, waiting.pk]
    assert (found["counters"]["running"], found["counters"]["queued"]) == ("1", "1")
    assert found["counters"]["oldest"] == round(waiting.created_at.timestamp() * 1000)


def test_a_run_that_waits_for_a_cheaper_time_shows_its_start(lead: Client, caller: Caller) -> None:
    start = now() + timedelta(hours=2)
    waiting = queued(caller, created_at=now() - timedelta(minutes=30), not_before=start)
    row, counters = row_of(lead, waiting), lead.get(ROWS).json()["counters"]
    expected = f"starts at {start:%H:%M} UTC, cheaper then"
    assert row is not None
    assert (row["step"], row["stuck"]) == (expected, "")
    assert (counters["queued"], counters["oldest"], counters["stuck"]) == ("1", None, "0")
    assert expected in text(lead.get(page_url(waiting)))


def test_a_run_that_waits_for_its_limits_shows_no_start(lead: Client, caller: Caller) -> None:
    waiting = queued(caller, not_before=now() + timedelta(hours=2), lease_token=2)
    row = row_of(lead, waiting)
    assert row is not None
    assert row["step"] == "waiting for a worker"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"lease_until": now() - timedelta(seconds=5)}, "Lease expired"),
        ({"lease_until": None, "created_at": now() - timedelta(minutes=5)}, "Not claimed by a worker"),
        ({"lease_until": None, "attempt": 5}, "No attempts left"),
        ({}, ""),
    ],
)
def test_a_stuck_run_is_marked_with_the_reason(lead: Client, caller: Caller, columns: dict[str, Any], why: str) -> None:
    response = running(caller, **columns)
    found = lead.get(ROWS).json()
    assert [(row["id"], row["stuck"]) for row in found["set"]] == [(response.pk, why)]
    assert found["counters"]["stuck"] == str(int(bool(why)))


def test_an_ended_run_is_not_listed(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert row_of(lead, response) is None


def test_the_table_works_without_scripts(lead: Client, caller: Caller) -> None:
    response = running(caller, model="gpt-x")
    page = text(lead.get(PAGE))
    assert f'data-run="{response.pk}"' in page
    assert f'href="/admin/live/{response.pk}/cancel/"' in page
    assert "gpt-x" in page


# -- permissions -------------------------------------------------------------------------------------------------------


def test_members_of_another_team_see_no_runs(stranger: Client, caller: Caller) -> None:
    response = running(caller, model="secret-model")
    add_deltas(response, "secret words")
    for url in (PAGE, ROWS):
        page = text(stranger.get(url))
        assert not [word for word in (response.pk, "secret", caller.team.name) if word in page]


def test_staff_see_runs_of_all_teams(operator: Client, platform_auditor: Client, caller: Caller) -> None:
    response = running(caller)
    assert all(row_of(client, response) for client in (operator, platform_auditor))


def test_output_is_hidden_from_viewers_without_read_access(auditor: Client, operator: Client, caller: Caller) -> None:
    response = running(caller)
    add_deltas(response, "private words")
    for client in (auditor, operator):
        found = row_of(client, response)
        assert found is not None
        assert found["preview"] == "•••"
        assert "private words" not in text(client.get(PAGE))


def test_reading_output_of_another_team_is_audited_once(admin: Client, caller: Caller) -> None:
    add_deltas(running(caller), "Hello")
    for _ in range(3):
        admin.get(ROWS)
    with scope.team(caller.team.pk):
        # The page may also show runs of other teams, which are in the same line.
        assert AuditEvent.objects.filter(lines_of([caller.team.pk]), action="content.viewed").count() == 1


@pytest.mark.parametrize("what", ["cancel", "requeue", "fail"])
def test_only_contributors_of_the_team_and_operators_may_act(
    what: str, auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller
) -> None:
    response = running(caller, lease_until=now() - timedelta(seconds=5))
    for client, status in ((auditor, 403), (platform_auditor, 403), (stranger, 404)):
        for ask in (client.get, client.post):
            assert ask(f"{PAGE}{response.pk}/{what}/").status_code == status
    assert stranger.post(f"{PAGE}resp_unknown/{what}/").status_code == 404
    assert row(response).ended_at is None
    assert audited(response) == []


def test_a_row_offers_only_permitted_actions(lead: Client, auditor: Client, caller: Caller) -> None:
    response = running(caller)
    offered = [found["may"] for client in (lead, auditor) if (found := row_of(client, response))]
    assert offered == [
        {"cancel": True, "requeue": True, "fail": False},
        {"cancel": False, "requeue": False, "fail": False},
    ]


# -- actions -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def new_operator() -> Callable[[], Client]:
    """A function that returns a client of a new operator."""
    return lambda: sign_in(staff=StaffRole.OPERATOR)


def test_cancelling_a_run_needs_confirmation(developer: Client, caller: Caller) -> None:
    response = running(caller)
    url = f"{PAGE}{response.pk}/cancel/"
    assert "Cancel this run?" in text(developer.get(url))
    assert row(response).ended_at is None
    answer = developer.post(url, follow=True)
    assert f"{response.pk} was cancelled." in text(answer)
    assert (row(response).status, audited(response)) == ("cancelled", [("response.cancelled", "user:user")])


def test_an_operator_may_cancel_runs_of_any_team(new_operator: Callable[[], Client], caller: Caller) -> None:
    response = queued(caller)
    answer = new_operator().post(f"{PAGE}{response.pk}/cancel/", headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"message": f"{response.pk} was cancelled."}
    assert row(response).status == "cancelled"


def test_an_ended_run_cannot_be_cancelled(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    answer = developer.post(f"{PAGE}{response.pk}/cancel/", headers={"X-Requested-With": "fetch"})
    assert (answer.status_code, answer.json()) == (409, {"message": f"{response.pk} has already ended."})
    assert (row(response).status, audited(response)) == ("completed", [])


def test_a_requeued_run_has_an_expired_lease_and_a_new_fencing_token(developer: Client, caller: Caller) -> None:
    response = running(caller, attempt=5)
    developer.post(f"{PAGE}{response.pk}/requeue/")
    after = row(response)
    assert (after.lease_owner, after.attempt) == (None, 4)
    assert after.lease_until is not None
    assert after.lease_until <= now()
    assert after.lease_token == response.lease_token + 1
    assert audited(response) == [("response.requeued", "user:user")]


def test_a_foreground_run_cannot_be_requeued(developer: Client, caller: Caller) -> None:
    response = running(caller, background=False)
    answer = developer.post(f"{PAGE}{response.pk}/requeue/", headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"message": f"{response.pk} cannot be requeued: its client is connected and waits for it."}
    assert row(response).lease_owner == WORKER


def test_a_stuck_run_can_be_marked_as_failed(developer: Client, caller: Caller) -> None:
    response = running(caller, lease_until=now() - timedelta(seconds=5), attempt=1, background=False)
    developer.post(f"{PAGE}{response.pk}/fail/")
    after = row(response)
    assert (after.status, after.error_code) == ("failed", "server_error")
    assert audited(response) == [("response.failed", "user:user")]


def test_a_healthy_run_cannot_be_marked_as_failed(developer: Client, caller: Caller) -> None:
    response = running(caller)
    answer = developer.post(f"{PAGE}{response.pk}/fail/", headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"message": f"{response.pk} is not stuck. Cancel it instead."}
    assert row(response).ended_at is None


# -- queries -----------------------------------------------------------------------------------------------------------


def test_the_page_has_a_constant_number_of_queries(
    admin: Client, caller: Caller, make_caller: MakeCaller, count_queries: CountQueries
) -> None:
    def busy(caller: Caller) -> None:
        response = running(caller)
        add_deltas(response, "Hello")
        add_turns(response, 2)
        add_call(response, turn=1)
        queued(caller)

    busy(caller)
    admin.get(ROWS)  # the first read of a team's content is audited
    few = count_queries(admin, ROWS)
    for _ in range(5):
        busy(caller)
    assert count_queries(admin, ROWS) == few
    assert few < 30
