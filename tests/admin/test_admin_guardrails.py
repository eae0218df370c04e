"""Guardrails in the admin: settings, secrets and decisions."""

from typing import Any

import pytest
from django.test import Client

from tenants import scope
from tenants.models import AuditEvent, Guardrail, GuardrailDecision, Team
from tests.admin.rows import text
from tests.support.api import Caller, MakeCaller

LIST = "/admin/tenants/guardrail/"
DECISIONS = "/admin/tenants/guardraildecision/"
SECRET = "guard-secret-51ce"
HOOK = "https://guard.example.com/check"


def form(**fields: Any) -> dict[str, Any]:
    """Return form data, by default of a hook that checks the input."""
    actions = {"input_action": "block", "output_action": "block"}
    return {"input_checker": "hook", "output_checker": "", **actions, "hook_url": HOOK, **fields}


def stored(team: Team) -> Guardrail | None:
    with scope.team(team.pk):
        return Guardrail.objects.filter(pk=team.pk).first()


@pytest.fixture
def guardrail(caller: Caller) -> Guardrail:
    """The guardrail of `caller`'s team."""
    with scope.team(caller.team.pk):
        return Guardrail.objects.create(team=caller.team, input_checker="hook", hook_url=HOOK, hook_secret=SECRET)


def test_a_lead_creates_a_guardrail_without_auditing_its_secret(lead: Client, caller: Caller) -> None:
    answer = lead.post(f"{LIST}add/", form(team=caller.team.pk, new_hook_secret=SECRET))
    assert answer.status_code == 302
    made = stored(caller.team)
    assert made is not None
    assert (made.input_checker, made.hook_url, made.hook_secret) == ("hook", HOOK, SECRET)
    with scope.team(caller.team.pk):
        noted = AuditEvent.objects.get(action="guardrail.created")
    assert SECRET not in str(noted.after)


def test_a_lead_may_not_create_a_guardrail_for_another_team(lead: Client, make_caller: MakeCaller) -> None:
    other = make_caller().team
    assert lead.post(f"{LIST}add/", form(team=other.pk)).status_code == 200
    assert stored(other) is None


@pytest.mark.parametrize(
    "wrong", [{"hook_url": ""}, {"hook_url": "http://127.0.0.1/x"}, {"input_checker": "model", "model": ""}]
)
def test_a_checker_needs_a_valid_address_or_model(lead: Client, caller: Caller, wrong: dict[str, str]) -> None:
    assert lead.post(f"{LIST}add/", form(team=caller.team.pk, **wrong)).status_code == 200
    assert stored(caller.team) is None


def test_no_page_shows_the_hook_secret(lead: Client, guardrail: Guardrail) -> None:
    pages = [text(lead.get(url)) for url in (LIST, f"{LIST}{guardrail.pk}/change/")]
    assert [SECRET in page for page in pages] == [False, False]


def test_changing_the_hook_address_removes_its_secret(lead: Client, caller: Caller, guardrail: Guardrail) -> None:
    page = f"{LIST}{guardrail.pk}/change/"
    lead.post(page, form(fails_open="on"))
    kept = stored(caller.team)
    assert kept is not None
    assert (kept.fails_open, kept.hook_secret) == (True, SECRET)
    lead.post(page, form(hook_url="https://elsewhere.example.com/check"))
    moved = stored(caller.team)
    assert moved is not None
    assert moved.hook_secret == ""


def test_only_leads_of_the_team_may_change_a_guardrail(
    developer: Client, stranger: Client, guardrail: Guardrail
) -> None:
    page = f"{LIST}{guardrail.pk}/change/"
    assert developer.get(page).status_code == 200
    assert developer.post(page, form()).status_code == 403
    assert stranger.get(page).status_code in {302, 403, 404}


def test_decisions_are_listed_for_members_only(developer: Client, stranger: Client, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        made = GuardrailDecision.objects.create(
            team=caller.team, response_id="resp_1", stage="input", checker="hook", outcome="blocked", categories=["pii"]
        )
    assert "pii" in text(developer.get(DECISIONS))
    assert developer.get(f"{DECISIONS}{made.pk}/change/").status_code == 200
    assert "pii" not in text(stranger.get(DECISIONS))


def test_the_reason_of_a_decision_is_content(operator: Client, developer: Client, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        decision = {"stage": "input", "checker": "hook", "outcome": "blocked", "categories": ["pii"]}
        GuardrailDecision.objects.create(team=caller.team, response_id="resp_1", reason="it names Ada", **decision)
    assert "names Ada" in text(developer.get(DECISIONS))
    page = text(operator.get(DECISIONS))
    assert "pii" in page
    assert "names Ada" not in page
