"""The `moderation` parameter: a model checks input and output; flagged content is reported, or stops the response."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web as aiohttp

from responses.models import Response
from tenants import scope, services
from tenants.models import Scope, Team, UsageRecord
from tests.support.aiohttp_server import serving
from tests.support.api import Api, MakeApi, error
from tests.support.background import ended
from tests.support.chunks import chunk
from tests.support.upstream import Answer, Gate, Script, ScriptedUpstream, refusal, stream, whole
from tests.support.waiting import eventually

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCORES = {"violence": 0.97, "harassment": 0.01}
BLOCK = {"mode": "block"}
SCORE = {"mode": "score"}


def moderation_answer(*, flagged: bool) -> Answer:
    """Return the answer of a moderation model."""
    result = {
        "flagged": flagged,
        "categories": {"violence": flagged, "harassment": False},
        "category_scores": SCORES,
        "category_applied_input_types": {"violence": ["text"], "harassment": []},
    }
    return whole({"id": "modr-1", "model": "judge-1", "results": [result]})


def shown_moderation(*, flagged: bool) -> dict[str, Any]:
    """Return the result as a response shows it."""
    return {
        "type": "moderation_result",
        "model": "judge-1",
        "flagged": flagged,
        "categories": {"violence": flagged, "harassment": False},
        "category_scores": SCORES,
        "category_applied_input_types": {"violence": ["text"], "harassment": []},
    }


FINE, BAD = moderation_answer(flagged=False), moderation_answer(flagged=True)


@pytest.fixture(scope="module")
def moderator() -> Iterator[ScriptedUpstream]:
    """A scripted upstream that only moderates."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/v1/moderations", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def moderation_script(moderator: ScriptedUpstream, database: None) -> Iterator[Script]:
    """The answers of one moderation model."""
    with moderator.script() as script:
        services.add_upstream(name=f"judge {uuid.uuid4().hex}", base_url=moderator.url, models=[script.model])
        yield script


def policy(moderation_script: Script, **sides: Any) -> dict[str, Any]:
    """Return the parameter with a mode for each given side."""
    return {"model": moderation_script.model, "policy": sides} if sides else {"model": moderation_script.model}


def ledger(api: Api) -> list[tuple[str, str]]:
    """Return endpoint and outcome of each upstream call of the team, in order."""
    with scope.team(api.caller.team.pk):
        return list(UsageRecord.objects.order_by("occurred_at", "id").values_list("endpoint", "outcome"))


def responses_of(api: Api) -> list[tuple[str, str]]:
    """Return status and first words of each response of the team."""
    with scope.team(api.caller.team.pk):
        return list(Response.objects.values_list("status", "output_preview"))


@pytest.mark.parametrize("sides", [{}, {"input": SCORE, "output": SCORE}, {"input": None}])
def test_results_for_input_and_output_are_shown(
    api: Api, script: Script, moderation_script: Script, sides: Any
) -> None:
    script.say("I will fight you.")
    moderation_script.then(FINE, BAD)
    response = api.create(model=script.model, input="Hi", moderation=policy(moderation_script, **sides))
    assert response["moderation"] == {
        "input": shown_moderation(flagged=False),
        "output": shown_moderation(flagged=True),
    }
    assert response["status"] == "completed"
    assert [body["input"] for body in moderation_script.bodies] == ["Hi", "I will fight you."]
    assert api.retrieve(response["id"]) == response


def test_responses_without_moderation_lack_the_field(api: Api, script: Script) -> None:
    script.say("Hello")
    assert api.create(model=script.model, input="Hi")["moderation"] is None


def test_each_moderation_call_has_a_usage_record(api: Api, script: Script, moderation_script: Script) -> None:
    script.say("Hello")
    moderation_script.then(FINE, FINE)
    api.create(model=script.model, input="Hi", moderation=policy(moderation_script))
    assert ledger(api) == [("moderations", "stop"), ("responses", "stop"), ("moderations", "stop")]


def test_flagged_input_is_refused_before_anything_is_stored(
    api: Api, script: Script, moderation_script: Script
) -> None:
    moderation_script.then(BAD)
    body = {"model": script.model, "input": "I will fight you.", "moderation": policy(moderation_script, input=BLOCK)}
    answer = api.post("/responses", body)
    assert error(answer) == (400, "input", "content_policy_violation")
    assert "violence" in answer.json()["error"]["message"]
    assert responses_of(api) == []


def test_unflagged_input_is_accepted(api: Api, script: Script, moderation_script: Script) -> None:
    script.say("Hello")
    moderation_script.then(FINE, BAD)
    response = api.create(model=script.model, input="Hi", moderation=policy(moderation_script, input=BLOCK))
    assert (response["status"], response["moderation"]["output"]["flagged"]) == ("completed", True)


def test_only_new_input_is_moderated(api: Api, script: Script, moderation_script: Script) -> None:
    script.say("Hello").say("Hello again")
    moderation_script.then(FINE, FINE)
    first = api.create(model=script.model, input="Earlier words")
    api.create(
        model=script.model, input="Later words", previous_response_id=first["id"], moderation=policy(moderation_script)
    )
    assert [body["input"] for body in moderation_script.bodies] == ["Later words", "Hello again"]


def test_images_are_moderated(api: Api, script: Script, moderation_script: Script) -> None:
    script.say("A cat")
    moderation_script.then(FINE, FINE)
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PNG}]
    api.create(model=script.model, input=[{"role": "user", "content": parts}], moderation=policy(moderation_script))
    assert moderation_script.bodies[0]["input"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PNG}},
    ]


def test_flagged_output_stops_the_response(api: Api, script: Script, moderation_script: Script) -> None:
    script.say("I will fight you.")
    moderation_script.then(FINE, BAD)
    body = {"model": script.model, "input": "Hi", "moderation": policy(moderation_script, output=BLOCK)}
    assert error(api.post("/responses", body)) == (400, None, "content_policy_violation")
    assert responses_of(api) == [("failed", "")]
    assert ("responses", "stop") in ledger(api)


def test_flagged_output_is_not_streamed(api: Api, script: Script, moderation_script: Script) -> None:
    script.say("I will ", "fight you.")
    moderation_script.then(FINE, BAD)
    events = api.events(model=script.model, input="Hi", moderation=policy(moderation_script, output=BLOCK))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    response = events[-1]["response"]
    assert (response["output"], response["error"]["code"]) == ([], "content_policy_violation")
    assert response["moderation"] == {
        "input": shown_moderation(flagged=False),
        "output": shown_moderation(flagged=True),
    }
    assert response["usage"]["output_tokens"] > 0


def test_unflagged_output_is_streamed_after_moderation(api: Api, script: Script, moderation_script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), chunk(content="lo"), chunk(finish="stop")))
    moderation_script.then(FINE, replace(FINE, pieces=[gate, *FINE.pieces]))
    with api.stream(model=script.model, input="Hi", moderation=policy(moderation_script, output=BLOCK)) as live:
        assert [live.next()["type"], live.next()["type"]] == ["response.created", "response.in_progress"]
        moderation_script.wait_for_call(1)
        gate.open()
        rest = live.rest()
    assert [event["delta"] for event in rest if event["type"] == "response.output_text.delta"] == ["Hel", "lo"]
    assert rest[-1]["response"]["moderation"]["output"] == shown_moderation(flagged=False)


def test_a_cancelled_run_keeps_held_back_output(api: Api, script: Script, moderation_script: Script) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(disconnect_grace_seconds=0)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop")))
    moderation_script.then(FINE)
    body = {"model": script.model, "input": "Hi", "stream": True, "moderation": policy(moderation_script, output=BLOCK)}
    with api.open("/responses", body):
        gate.wait_until_reached()
    eventually(lambda: responses_of(api) == [("cancelled", "")])
    with scope.team(api.caller.team.pk):
        response_id = Response.objects.get().pk
    assert api.retrieve(response_id)["output"] == []


def test_a_finished_run_cannot_be_cancelled_during_moderation(
    api: Api, script: Script, moderation_script: Script
) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(disconnect_grace_seconds=0)
    gate = Gate()
    script.say("Hello")
    moderation_script.then(FINE, replace(FINE, pieces=[gate, *FINE.pieces]))
    body = {"model": script.model, "input": "Hi", "stream": True, "moderation": policy(moderation_script)}
    with api.open("/responses", body):
        moderation_script.wait_for_call(1)
    eventually(lambda: responses_of(api) == [("completed", "Hello")])
    with scope.team(api.caller.team.pk):
        response_id = Response.objects.get().pk
    assert api.retrieve(response_id)["moderation"]["output"]["type"] == "error"


def test_a_failing_moderation_model_is_reported_in_score_mode(
    api: Api, script: Script, moderation_script: Script
) -> None:
    script.say("Hello")
    moderation_script.then(refusal(400, "No."), whole({"results": []}))
    moderation = api.create(model=script.model, input="Hi", moderation=policy(moderation_script))["moderation"]
    assert [moderation[side]["type"] for side in ("input", "output")] == ["error", "error"]


@pytest.mark.parametrize("failing", [refusal(400, "No."), whole({"results": []}), whole({"results": "none"})])
def test_a_failing_moderation_model_stops_the_response_in_block_mode(
    api: Api, script: Script, moderation_script: Script, failing: Answer
) -> None:
    moderation_script.then(failing, FINE, failing)
    script.say("Hello")
    body = {"model": script.model, "input": "Hi"}
    before = error(api.post("/responses", {**body, "moderation": policy(moderation_script, input=BLOCK)}))
    assert before[0] in {400, 500}
    assert responses_of(api) == []
    after = error(api.post("/responses", {**body, "moderation": policy(moderation_script, output=BLOCK)}))
    assert (after[0], after[2]) == (500, "server_error")
    assert responses_of(api) == [("failed", "")]


def test_a_model_without_moderation_support_is_refused(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": "Hi", "moderation": {"model": script.model}}
    assert error(api.post("/responses", body)) == (400, "moderation.model", "unsupported_value")


def test_an_unknown_moderation_model_is_refused(make_api: MakeApi, script: Script, moderation_script: Script) -> None:
    api = make_api(allowed_models=[script.model])
    body = {"model": script.model, "input": "Hi", "moderation": policy(moderation_script)}
    assert error(api.post("/responses", body)) == (400, "moderation.model", "model_not_found")


def test_moderation_requires_its_scope(make_api: MakeApi, script: Script, moderation_script: Script) -> None:
    api = make_api(scopes=[Scope.RESPONSES_WRITE.value])
    body = {"model": script.model, "input": "Hi", "moderation": policy(moderation_script)}
    assert error(api.post("/responses", body)) == (403, None, "insufficient_scope")


def test_function_calls_are_held_back_like_text(api: Api, script: Script, moderation_script: Script) -> None:
    script.call(look="{}")
    moderation_script.then(FINE, FINE)
    tool = {"type": "function", "name": "look"}
    response = api.create(
        model=script.model, input="Hi", tools=[tool], moderation=policy(moderation_script, output=BLOCK)
    )
    assert [item["type"] for item in response["output"]] == ["function_call"]


@pytest.mark.usefixtures("worker")
def test_background_responses_are_moderated(api: Api, script: Script, moderation_script: Script) -> None:
    moderation_script.then(FINE, BAD)
    asked = {"model": script.say("Awful.").model, "input": "Hi", "moderation": policy(moderation_script, output=BLOCK)}
    failed = ended(api, api.create(**asked, background=True)["id"])
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert failed["moderation"] == {"input": shown_moderation(flagged=False), "output": shown_moderation(flagged=True)}


def test_input_is_moderated_before_a_response_is_queued(api: Api, script: Script, moderation_script: Script) -> None:
    moderation_script.then(BAD)
    asked = {
        "model": script.model,
        "input": "Hi",
        "moderation": policy(moderation_script, input=BLOCK),
        "background": True,
    }
    assert error(api.post("/responses", asked))[0] == 400
