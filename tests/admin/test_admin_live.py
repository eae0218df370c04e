"""The page of running jobs: what it shows to whom, and what people can do there."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from kernel.clock import now
from responses.models import EventBatch, Response, Status
from tenants import scope
from tenants.models import AuditEvent, StaffRole
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_response, add_turns, sign_in, text
from tests.support.api import Caller, MakeCaller

# What stands in the rows here is nobody's work.
pytestmark = pytest.mark.usefixtures("no_worker")
PAGE = "/admin/live/"
ROWS = "/admin/live/rows/"
WORKER = "host:1:abc"


def running(caller: Caller, **columns: Any) -> Response:
    """A background response that a worker executes."""
    held = {
        "status": Status.IN_PROGRESS,
        "parameters": {},
        "background": True,
        "lease_owner": WORKER,
        "attempt": 1,
        "turns": 0,
    }
    return add_response(caller, **{**held, "lease_until": now() + timedelta(seconds=25), **columns})


def queued(caller: Caller, **columns: Any) -> Response:
    """A background response that waits for a worker."""
    return add_response(
        caller, **{"status": Status.QUEUED, "parameters": {}, "background": True, "turns": 0, **columns}
    )


def says(response: Response, *words: str, first: int = 2) -> None:
    """Deltas in the log of a run."""
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
            frames=frames,
        )


def shown(client: Client, response: Response) -> dict[str, Any] | None:
    """What the page knows of a run."""
    rows = {row["id"]: row for row in client.get(ROWS).json()["set"]}
    return rows.get(response.pk)


def row(response: Response) -> Response:
    """The response as it is stored now."""
    with scope.team(response.team_id):
        return Response.objects.get(pk=response.pk)


def audited(response: Response) -> list[tuple[str, str]]:
    """What the audit log says was done with it, and by what kind of actor."""
    with scope.team(response.team_id):
        lines = AuditEvent.objects.filter(target=response.pk).order_by("id")
        return [(line.action, line.actor.split("-")[0]) for line in lines]


def test_it_shows_where_a_run_stands(lead: Client, caller: Caller) -> None:
    response = running(caller, created_at=now() - timedelta(seconds=9), input_tokens=12_345, output_tokens=67, turns=2)
    add_turns(response, 2)
    add_call(response, turn=1, call_id="a", name="look_up", status="completed")
    add_call(response, turn=1, call_id="b", name="search", status="in_progress", ended_at=None)
    row = shown(lead, response)
    assert row is not None
    assert {name: row[name] for name in ("state", "tone", "mode", "worker", "attempt", "step", "tokens")} == {
        "state": "tool",
        "tone": "tool",
        "mode": "background",
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


def test_it_shows_what_the_model_is_saying_and_how_far_its_log_is(lead: Client, caller: Caller) -> None:
    response = running(caller)
    says(response, "Once ", "upon ", "a time")
    row = shown(lead, response)
    assert row is not None
    assert (row["preview"], row["event"]) == ("Once upon a time", 4)


def test_it_tells_how_long_a_run_has_waited_for_its_worker(lead: Client, caller: Caller) -> None:
    begun, waiting = running(caller, created_at=now() - timedelta(minutes=2)), queued(caller)
    says(begun, "Hello")
    found = {row["id"]: (row["waits"], row["wait"]) for row in lead.get(ROWS).json()["set"]}
    assert found == {begun.pk: (False, "2 min 0 s"), waiting.pk: (True, "")}


def test_those_that_wait_come_last_and_are_counted(lead: Client, caller: Caller) -> None:
    waiting = queued(caller, created_at=now() - timedelta(seconds=30))
    response = running(caller)
    found = lead.get(ROWS).json()
    assert [row["id"] for row in found["set"]] == [response.pk, waiting.pk]
    assert (found["counters"]["running"], found["counters"]["queued"]) == ("1", "1")
    assert found["counters"]["oldest"] == round(waiting.created_at.timestamp() * 1000)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"lease_until": now() - timedelta(seconds=5)}, "Lease expired"),
        ({"lease_until": None, "created_at": now() - timedelta(minutes=5)}, "Not claimed by a worker"),
        ({"lease_until": None, "attempt": 5}, "No attempts left"),
        ({}, ""),
    ],
)
def test_it_tells_what_is_stuck(lead: Client, caller: Caller, columns: dict[str, Any], why: str) -> None:
    response = running(caller, **columns)
    found = lead.get(ROWS).json()
    assert [(row["id"], row["stuck"]) for row in found["set"]] == [(response.pk, why)]
    assert found["counters"]["stuck"] == str(int(bool(why)))


def test_what_has_ended_is_not_there(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert shown(lead, response) is None


def test_the_page_has_the_table_without_a_script(lead: Client, caller: Caller) -> None:
    response = running(caller, model="gpt-x")
    page = text(lead.get(PAGE))
    assert f'data-run="{response.pk}"' in page
    assert f'href="/admin/live/{response.pk}/cancel/"' in page
    assert "gpt-x" in page


# -- who sees what -----------------------------------------------------------------------------------------------------


def test_a_member_of_another_team_sees_nothing_of_it(stranger: Client, caller: Caller) -> None:
    response = running(caller, model="secret-model")
    says(response, "secret words")
    for url in (PAGE, ROWS):
        page = text(stranger.get(url))
        assert not [word for word in (response.pk, "secret", caller.team.name) if word in page]


def test_staff_see_the_runs_of_every_team(operator: Client, platform_auditor: Client, caller: Caller) -> None:
    response = running(caller)
    assert all(shown(client, response) for client in (operator, platform_auditor))


def test_words_are_hidden_from_those_who_may_not_read(auditor: Client, operator: Client, caller: Caller) -> None:
    response = running(caller)
    says(response, "private words")
    for client in (auditor, operator):
        found = shown(client, response)
        assert found is not None
        assert found["preview"] == "•••"
        assert "private words" not in text(client.get(PAGE))


def test_whoever_reads_words_of_a_foreign_team_is_noted_once(admin: Client, caller: Caller) -> None:
    says(running(caller), "Hello")
    for _ in range(3):
        admin.get(ROWS)
    with scope.team(caller.team.pk):
        lines = AuditEvent.objects.filter(team_id=caller.team.pk, action="content.viewed")
        assert [line.target for line in lines] == [caller.team.pk]


@pytest.mark.parametrize("what", ["cancel", "requeue", "fail"])
def test_only_makers_of_the_team_and_operators_may_steer(
    what: str, auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller
) -> None:
    response = running(caller, lease_until=now() - timedelta(seconds=5))
    for client, status in ((auditor, 403), (platform_auditor, 403), (stranger, 404)):
        for ask in (client.get, client.post):
            assert ask(f"{PAGE}{response.pk}/{what}/").status_code == status
    assert stranger.post(f"{PAGE}resp_unknown/{what}/").status_code == 404
    assert row(response).ended_at is None
    assert audited(response) == []


def test_a_row_offers_what_its_viewer_may_do(lead: Client, auditor: Client, caller: Caller) -> None:
    response = running(caller)
    offered = [found["may"] for client in (lead, auditor) if (found := shown(client, response))]
    assert offered == [
        {"cancel": True, "requeue": True, "fail": False},
        {"cancel": False, "requeue": False, "fail": False},
    ]


# -- what people do ----------------------------------------------------------------------------------------------------


@pytest.fixture
def operating() -> Callable[[], Client]:
    """Browsers of operators."""
    return lambda: sign_in(staff=StaffRole.OPERATOR)


def test_a_run_is_cancelled_after_a_question(developer: Client, caller: Caller) -> None:
    response = running(caller)
    url = f"{PAGE}{response.pk}/cancel/"
    assert "Cancel this run?" in text(developer.get(url))
    assert row(response).ended_at is None
    answer = developer.post(url, follow=True)
    assert f"{response.pk} was cancelled." in text(answer)
    assert (row(response).status, audited(response)) == ("cancelled", [("response.cancelled", "user:user")])


def test_an_operator_cancels_the_run_of_any_team(operating: Callable[[], Client], caller: Caller) -> None:
    response = queued(caller)
    answer = operating().post(f"{PAGE}{response.pk}/cancel/", headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"message": f"{response.pk} was cancelled."}
    assert row(response).status == "cancelled"


def test_what_has_ended_is_not_cancelled(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    answer = developer.post(f"{PAGE}{response.pk}/cancel/", headers={"X-Requested-With": "fetch"})
    assert (answer.status_code, answer.json()) == (409, {"message": f"{response.pk} has already ended."})
    assert (row(response).status, audited(response)) == ("completed", [])


def test_a_requeued_run_is_anybodys(developer: Client, caller: Caller) -> None:
    response = running(caller, attempt=5)
    developer.post(f"{PAGE}{response.pk}/requeue/")
    after = row(response)
    assert (after.lease_owner, after.lease_until, after.attempt) == (None, None, 4)
    assert after.lease_token == response.lease_token + 1
    assert audited(response) == [("response.requeued", "user:user")]


def test_a_run_whose_client_waits_is_not_requeued(developer: Client, caller: Caller) -> None:
    response = running(caller, background=False)
    answer = developer.post(f"{PAGE}{response.pk}/requeue/", headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"message": f"{response.pk} cannot be requeued: its client is connected and waits for it."}
    assert row(response).lease_owner == WORKER


def test_a_stuck_run_is_ended_as_failed(developer: Client, caller: Caller) -> None:
    response = running(caller, lease_until=now() - timedelta(seconds=5), attempt=1, background=False)
    developer.post(f"{PAGE}{response.pk}/fail/")
    after = row(response)
    assert (after.status, after.error_code) == ("failed", "server_error")
    assert audited(response) == [("response.failed", "user:user")]


def test_a_run_that_is_well_is_not_ended_as_failed(developer: Client, caller: Caller) -> None:
    response = running(caller)
    answer = developer.post(f"{PAGE}{response.pk}/fail/", headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"message": f"{response.pk} is not stuck. Cancel it instead."}
    assert row(response).ended_at is None


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_its_queries_do_not_grow_with_what_runs(
    admin: Client, caller: Caller, make_caller: MakeCaller, count_queries: CountQueries
) -> None:
    def busy(caller: Caller) -> None:
        response = running(caller)
        says(response, "Hello")
        add_turns(response, 2)
        add_call(response, turn=1)
        queued(caller)

    busy(caller)
    admin.get(ROWS)  # reading the words of a team is noted when it happens first
    few = count_queries(admin, ROWS)
    for _ in range(5):
        busy(caller)
    assert count_queries(admin, ROWS) == few
    assert few < 30
