"""The guide of first steps: what is done, the command to copy, and requests as they arrive."""

from datetime import timedelta

from django.test import Client

from core.clock import now
from responses.models import Status
from tenants.models import Model
from tests.admin.rows import add_response, member, text
from tests.support.api import Caller, MakeCaller

PAGE = "/admin/first-steps/"
UPDATE = {"HX-Request": "true"}


def test_finished_steps_are_marked(lead: Client, caller: Caller) -> None:
    page = text(lead.get(PAGE))
    assert "<h3>Create a team <small>Done</small>" in page
    assert "<h3>Create an API key <small>Done</small>" in page
    assert "<h3>Call the API</h3>" in page
    assert "Connect a model server" not in page


def test_only_responses_after_the_page_was_opened_arrive(lead: Client, caller: Caller) -> None:
    old = add_response(caller, created_at=now() - timedelta(minutes=5))
    since = int((now() - timedelta(seconds=1)).timestamp() * 1000)
    update = lead.get(PAGE, {"since": since}, headers=UPDATE)
    assert (update.status_code, old.pk in text(update)) == (200, False)
    new = add_response(caller)
    update = lead.get(PAGE, {"since": since}, headers=UPDATE)
    # The status with which htmx stops polling.
    assert update.status_code == 286
    assert new.pk in text(update)
    assert "<h3>Call the API <small>Done</small>" in text(update)


def test_a_running_response_is_followed_until_it_ends(lead: Client, caller: Caller) -> None:
    running = add_response(caller, status=Status.IN_PROGRESS)
    update = lead.get(PAGE, headers=UPDATE)
    assert (update.status_code, running.pk in text(update)) == (200, True)


def test_responses_of_other_teams_do_not_arrive(make_caller: MakeCaller, lead: Client) -> None:
    foreign = add_response(make_caller())
    assert foreign.pk not in text(lead.get(PAGE, headers=UPDATE))
    assert foreign.pk in text(member(foreign.team).get(PAGE, headers=UPDATE))


def test_home_shows_the_guide_to_operators_while_there_is_no_model(
    operator: Client, lead: Client, caller: Caller
) -> None:
    add_response(caller)
    assert "Connect a model server" not in text(operator.get("/admin/"))
    enabled = list(Model.objects.filter(enabled=True).values_list("pk", flat=True))
    Model.objects.filter(pk__in=enabled).update(enabled=False)
    try:
        page = text(operator.get("/admin/"))
        assert ("Connect a model server" in page, "Latest responses" in page) == (True, True)
        assert "Connect a model server" not in text(lead.get("/admin/"))
    finally:
        Model.objects.filter(pk__in=enabled).update(enabled=True)


def test_odd_times_are_ignored(lead: Client) -> None:
    for since in ("x", "-1", "9" * 30, ""):
        assert lead.get(PAGE, {"since": since}).status_code == 200
