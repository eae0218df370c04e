"""Guardrails of teams: a hook or a moderation model checks input and output."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web as aiohttp

from responses.models import Response
from tenants import scope, services
from tenants.models import Guardrail, GuardrailDecision, Team
from tests.docs.blocks import ROOT, blocks
from tests.support.aiohttp_server import serving
from tests.support.api import Api, error, ok
from tests.support.background import RUNNING
from tests.support.chunks import text
from tests.support.guardrail_hook import BAD, FINE, Hook, running_hook
from tests.support.streams import types
from tests.support.upstream import Gate, Script, ScriptedUpstream, refusal, stream, whole
from tests.support.waiting import eventually

SECRET = "hook-secret"


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Start a hook on this machine."""
    with running_hook() as running:
        yield running


def guard(team: Team, **settings: Any) -> None:
    """Create the team's guardrail. Call this before its first request, as lookups are cached for a second."""
    with scope.every_team():
        Guardrail.objects.create(team=team, **settings)


def decisions(api: Api) -> list[tuple[str, str, list[str]]]:
    """Return stage, outcome and categories of the decisions, oldest first."""
    with scope.team(api.caller.team.pk):
        rows = GuardrailDecision.objects.order_by("id")
        return list(rows.values_list("stage", "outcome", "categories"))


def test_content_that_passes_is_unchanged(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, input_checker="hook", output_checker="hook", hook_url=hook.url, hook_secret=SECRET)
    hook.then(FINE, FINE)
    response = reaching.create(model=script.say("Hello.").model, input="Hi")
    assert response["output"][0]["content"][0]["text"] == "Hello."
    assert response["moderation"] is None
    about = {"team": reaching.caller.team.pk, "model": script.model, "response_id": response["id"], "images": []}
    assert hook.asked == [{**about, "stage": "input", "text": "Hi"}, {**about, "stage": "output", "text": "Hello."}]
    documented = next(one for one in blocks(ROOT / "docs/howto/guardrails.md") if one.language == "json")
    assert json.loads(documented.text).keys() == hook.asked[0].keys()
    assert hook.tokens == [f"Bearer {SECRET}"] * 2
    assert decisions(reaching) == [("input", "passed", []), ("output", "passed", [])]


def test_a_blocked_input_stores_nothing(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, input_checker="hook", hook_url=hook.url)
    hook.then(BAD)
    answer = reaching.post("/responses", {"model": script.model, "input": "My password is x."})
    assert error(answer) == (400, "input", "content_policy_violation")
    assert "secrets" in answer.json()["error"]["message"]
    assert decisions(reaching) == [("input", "blocked", ["secrets"])]
    with scope.team(reaching.caller.team.pk):
        assert not Response.objects.exists()


def test_the_documented_answer_blocks_an_input(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, input_checker="hook", hook_url=hook.url)
    [_, documented] = [block for block in blocks(ROOT / "docs/howto/guardrails.md") if block.language == "json"]
    hook.then(json.loads(documented.text))
    answer = reaching.post("/responses", {"model": script.model, "input": "What does Acme pay?"})
    assert error(answer) == (400, "input", "content_policy_violation")
    assert decisions(reaching) == [("input", "blocked", ["customers"])]


def test_instructions_and_the_whole_conversation_are_checked(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, input_checker="hook", hook_url=hook.url)
    hook.then(FINE)
    items = [{"role": "user", "content": "Smuggled in."}]
    conversation = ok(reaching.post("/conversations", {"items": items}))["id"]
    reaching.create(model=script.say("Hello.").model, input="Hi", conversation=conversation, instructions="Be bad.")
    assert hook.asked[0]["text"] == "Be bad.\n\nSmuggled in.\n\nHi"


def test_a_blocked_output_is_never_streamed(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, output_checker="hook", hook_url=hook.url)
    hook.then(BAD)
    events = reaching.events(model=script.say("The ", "secret.").model, input="Hi")
    assert types(events) == ["response.created", "response.in_progress", "error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["output"], failed["error"]["code"]) == ([], "content_policy_violation")
    assert decisions(reaching) == [("output", "blocked", ["secrets"])]


def test_a_blocked_output_is_an_error_without_streaming(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, output_checker="hook", hook_url=hook.url)
    hook.then(BAD)
    answer = reaching.post("/responses", {"model": script.say("The secret.").model, "input": "Hi"})
    assert error(answer)[::2] == (400, "content_policy_violation")


def test_an_output_that_passes_is_streamed_after_the_check(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, output_checker="hook", hook_url=hook.url)
    hook.then(FINE)
    events = reaching.events(model=script.say("Hello ", "there.").model, input="Hi")
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == ["Hello ", "there."]


def test_flagged_output_is_streamed_immediately_if_only_logged(reaching: Api, script: Script, hook: Hook) -> None:
    settings = {"input_action": "score", "output_action": "score"}
    guard(reaching.caller.team, input_checker="hook", output_checker="hook", hook_url=hook.url, **settings)
    hook.then(BAD, BAD)
    response = reaching.create(model=script.say("The secret.").model, input="Hi")
    assert response["status"] == "completed"
    assert [outcome for _, outcome, _ in decisions(reaching)] == ["noted", "noted"]


@pytest.mark.parametrize("answer", [(500, {}), (200, {"allow": "maybe"}), (302, FINE)])
def test_a_failed_check_blocks(reaching: Api, script: Script, hook: Hook, answer: Any) -> None:
    guard(reaching.caller.team, input_checker="hook", hook_url=hook.url)
    hook.then(answer[1], status=answer[0])
    rejected = reaching.post("/responses", {"model": script.model, "input": "Hi"})
    assert error(rejected) == (500, None, "server_error")
    assert hook.url not in rejected.text
    assert decisions(reaching) == [("input", "failed", [])]


def test_a_failed_check_passes_if_the_guardrail_fails_open(reaching: Api, script: Script, hook: Hook) -> None:
    sides = {"input_checker": "hook", "output_checker": "hook"}
    guard(reaching.caller.team, **sides, hook_url=hook.url, fails_open=True)
    hook.then({}, {})
    assert reaching.create(model=script.say("Hello.").model, input="Hi")["status"] == "completed"
    assert [outcome for _, outcome, _ in decisions(reaching)] == ["failed", "failed"]


def test_a_hook_at_a_forbidden_address_is_never_called(api: Api, script: Script, hook: Hook) -> None:
    guard(api.caller.team, input_checker="hook", hook_url=hook.url)
    rejected = api.post("/responses", {"model": script.model, "input": "Hi"})
    assert error(rejected)[0] == 500
    assert hook.asked == []


def test_a_guardrail_may_use_models_that_the_key_may_not_use(api: Api, script: Script, database: None) -> None:
    judges, app = ScriptedUpstream(), aiohttp.Application()
    app.router.add_post("/v1/moderations", judges.answer)
    with serving(app) as judges.url, judges.script() as judge:
        services.add_upstream(name=f"judge {uuid.uuid4().hex}", base_url=judges.url, models=[judge.model])
        guard(api.caller.team, input_checker="model", output_checker="model", model=judge.model)
        for flagged in (False, True):
            judge.then(whole({"results": [{"flagged": flagged, "categories": {"violence": flagged}}]}))
        answer = api.post("/responses", {"model": script.say("I will fight you.").model, "input": "Hi"})
    assert error(answer)[::2] == (400, "content_policy_violation")
    assert decisions(api) == [("input", "passed", []), ("output", "blocked", ["violence"])]


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_background_output_is_checked_by_the_worker(reaching: Api, script: Script, database: None) -> None:
    judges, app = ScriptedUpstream(), aiohttp.Application()
    app.router.add_post("/v1/moderations", judges.answer)
    with serving(app) as judges.url, judges.script() as judge:
        services.add_upstream(name=f"judge {uuid.uuid4().hex}", base_url=judges.url, models=[judge.model])
        guard(reaching.caller.team, output_checker="model", model=judge.model)
        judge.then(whole({"results": [{"flagged": True, "categories": {}}]}))
        started = reaching.create(model=script.say("I will fight you.").model, input="Hi", background=True)
        eventually(lambda: reaching.retrieve(started["id"])["status"] not in RUNNING)
    ended = reaching.retrieve(started["id"])
    assert (ended["status"], ended["output"]) == ("failed", [])
    assert decisions(reaching) == [("output", "blocked", [])]


def test_a_disconnect_during_a_check_changes_nothing(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, output_checker="hook", hook_url=hook.url)
    hook.then(BAD)
    gate = Gate()
    script.then(stream(gate, *text("The secret.")))
    with reaching.open("/responses", {"model": script.model, "input": "Hi", "stream": True}):
        gate.wait_until_reached()
    gate.open()
    eventually(lambda: decisions(reaching) == [("output", "blocked", ["secrets"])])


def test_a_guardrail_applies_only_to_its_team(outsider: Api, api: Api, script: Script, hook: Hook) -> None:
    guard(outsider.caller.team, input_checker="hook", hook_url=hook.url)
    assert api.create(model=script.say("Hello.").model, input="Hi")["status"] == "completed"
    assert hook.asked == []


def test_chat_completions_are_checked_as_well(api: Api, script: Script, hook: Hook) -> None:
    guard(api.caller.team, output_checker="hook", hook_url=hook.url)
    body = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}]}
    for streamed in (False, True):
        assert error(api.post("/chat/completions", {**body, "stream": streamed}))[::2] == (403, "guardrail_required")


def test_a_secret_that_the_hook_repeats_is_not_stored(reaching: Api, script: Script, hook: Hook) -> None:
    guard(reaching.caller.team, input_checker="hook", hook_url=hook.url, hook_secret=SECRET)
    hook.then({"allow": False, "categories": [f"bad {SECRET}"], "reason": f"Token {SECRET} has expired."})
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi"})
    assert SECRET not in answer.text
    with scope.team(reaching.caller.team.pk):
        decision = GuardrailDecision.objects.get()
    assert (decision.reason, decision.categories) == ("Token [redacted] has expired.", ["bad [redacted]"])


@pytest.mark.parametrize(("store", "reason"), [(True, "It names Kranich."), (False, "")])
def test_the_reason_of_a_hook_is_stored_with_the_response_only(
    reaching: Api, script: Script, hook: Hook, store: bool, reason: str
) -> None:
    guard(reaching.caller.team, input_checker="hook", hook_url=hook.url)
    hook.then({"allow": False, "categories": ["names"], "reason": "It names Kranich."})
    body = {"model": script.model, "input": "Kranich", "store": store}
    assert error(reaching.post("/responses", body))[:1] == (400,)
    assert reason_of(reaching) == reason


@pytest.mark.parametrize("store", [True, False])
def test_the_reason_of_a_failed_moderation_has_no_secret_and_no_unstored_content(
    api: Api, script: Script, database: None, store: bool
) -> None:
    key = "sk-judge-7f3a9b21c4"
    judges, app = ScriptedUpstream(), aiohttp.Application()
    app.router.add_post("/v1/moderations", judges.answer)
    with serving(app) as judges.url, judges.script() as judge:
        name = f"judge {uuid.uuid4().hex}"
        services.add_upstream(name=name, base_url=judges.url, api_key=key, models=[judge.model])
        guard(api.caller.team, input_checker="model", model=judge.model, fails_open=True)
        judge.then(refusal(400, f"No Kranich for {key}."))
        api.create(model=script.say("Hello.").model, input="Kranich", store=store)
    assert key not in reason_of(api)
    assert ("Kranich" in reason_of(api)) == store


def reason_of(api: Api) -> str:
    """Return the reason of the team's only decision."""
    with scope.team(api.caller.team.pk):
        return GuardrailDecision.objects.get().reason
