"""`moderation`: a model judges input and output; what it flags is shown, or stops the response."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web as aiohttp

from responses.models import Response
from tenants import scope, services
from tenants.models import Scope, Team, UsageRecord
from tests.support.api import Api, MakeApi, error
from tests.support.background import ended
from tests.support.chunks import chunk
from tests.support.serving import serving
from tests.support.upstream import Answer, Gate, Script, ScriptedUpstream, refusal, stream, whole
from tests.support.waiting import eventually

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCORES = {"violence": 0.97, "harassment": 0.01}
BLOCK = {"mode": "block"}
SCORE = {"mode": "score"}


def judged(*, flagged: bool) -> Answer:
    """What a moderation model answers."""
    result = {
        "flagged": flagged,
        "categories": {"violence": flagged, "harassment": False},
        "category_scores": SCORES,
        "category_applied_input_types": {"violence": ["text"], "harassment": []},
    }
    return whole({"id": "modr-1", "model": "judge-1", "results": [result]})


def shown(*, flagged: bool) -> dict[str, Any]:
    """The same as a response shows it."""
    return {
        "type": "moderation_result",
        "model": "judge-1",
        "flagged": flagged,
        "categories": {"violence": flagged, "harassment": False},
        "category_scores": SCORES,
        "category_applied_input_types": {"violence": ["text"], "harassment": []},
    }


FINE, BAD = judged(flagged=False), judged(flagged=True)


@pytest.fixture(scope="module")
def judges() -> Iterator[ScriptedUpstream]:
    """A scripted upstream that moderates and does nothing else."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/v1/moderations", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def judge(judges: ScriptedUpstream, database: None) -> Iterator[Script]:
    """What one of its models says."""
    with judges.script() as script:
        services.add_upstream(name=f"judge {uuid.uuid4().hex}", base_url=judges.url, models=[script.model])
        yield script


def policy(judge: Script, **sides: Any) -> dict[str, Any]:
    """The parameter, with a mode for each side that is named."""
    return {"model": judge.model, "policy": sides} if sides else {"model": judge.model}


def ledger(api: Api) -> list[tuple[str, str]]:
    """Endpoint and outcome of each upstream call of the team, in their order."""
    with scope.team(api.caller.team.pk):
        return list(UsageRecord.objects.order_by("occurred_at", "id").values_list("endpoint", "outcome"))


def responses_of(api: Api) -> list[tuple[str, str]]:
    """Status and first words of each response of the team."""
    with scope.team(api.caller.team.pk):
        return list(Response.objects.values_list("status", "output_preview"))


@pytest.mark.parametrize("sides", [{}, {"input": SCORE, "output": SCORE}, {"input": None}])
def test_it_shows_what_was_found_on_both_sides(api: Api, script: Script, judge: Script, sides: Any) -> None:
    script.say("I will fight you.")
    judge.then(FINE, BAD)
    response = api.create(model=script.model, input="Hi", moderation=policy(judge, **sides))
    assert response["moderation"] == {"input": shown(flagged=False), "output": shown(flagged=True)}
    assert response["status"] == "completed"
    assert [body["input"] for body in judge.bodies] == ["Hi", "I will fight you."]
    assert api.retrieve(response["id"]) == response


def test_nobody_else_sees_the_field(api: Api, script: Script) -> None:
    script.say("Hello")
    assert "moderation" not in api.create(model=script.model, input="Hi")


def test_each_judgement_stands_in_the_ledger(api: Api, script: Script, judge: Script) -> None:
    script.say("Hello")
    judge.then(FINE, FINE)
    api.create(model=script.model, input="Hi", moderation=policy(judge))
    assert ledger(api) == [("moderations", "stop"), ("responses", "stop"), ("moderations", "stop")]


def test_flagged_input_is_refused_before_anything_is_stored(api: Api, script: Script, judge: Script) -> None:
    judge.then(BAD)
    body = {"model": script.model, "input": "I will fight you.", "moderation": policy(judge, input=BLOCK)}
    answer = api.post("/responses", body)
    assert error(answer) == (400, "input", "content_policy_violation")
    assert "violence" in answer.json()["error"]["message"]
    assert responses_of(api) == []


def test_input_that_is_fine_goes_through(api: Api, script: Script, judge: Script) -> None:
    script.say("Hello")
    judge.then(FINE, BAD)
    response = api.create(model=script.model, input="Hi", moderation=policy(judge, input=BLOCK))
    assert (response["status"], response["moderation"]["output"]["flagged"]) == ("completed", True)


def test_only_what_the_request_brings_is_judged(api: Api, script: Script, judge: Script) -> None:
    script.say("Hello").say("Hello again")
    judge.then(FINE, FINE)
    first = api.create(model=script.model, input="Earlier words")
    api.create(model=script.model, input="Later words", previous_response_id=first["id"], moderation=policy(judge))
    assert [body["input"] for body in judge.bodies] == ["Later words", "Hello again"]


def test_images_are_judged_too(api: Api, script: Script, judge: Script) -> None:
    script.say("A cat")
    judge.then(FINE, FINE)
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PNG}]
    api.create(model=script.model, input=[{"role": "user", "content": parts}], moderation=policy(judge))
    assert judge.bodies[0]["input"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PNG}},
    ]


def test_a_flagged_answer_is_stopped(api: Api, script: Script, judge: Script) -> None:
    script.say("I will fight you.")
    judge.then(FINE, BAD)
    body = {"model": script.model, "input": "Hi", "moderation": policy(judge, output=BLOCK)}
    assert error(api.post("/responses", body)) == (400, None, "content_policy_violation")
    assert responses_of(api) == [("failed", "")]
    assert ("responses", "stop") in ledger(api)


def test_nothing_of_a_stopped_answer_is_streamed(api: Api, script: Script, judge: Script) -> None:
    script.say("I will ", "fight you.")
    judge.then(FINE, BAD)
    events = api.events(model=script.model, input="Hi", moderation=policy(judge, output=BLOCK))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    response = events[-1]["response"]
    assert (response["output"], response["error"]["code"]) == ([], "content_policy_violation")
    assert response["moderation"] == {"input": shown(flagged=False), "output": shown(flagged=True)}
    assert response["usage"]["output_tokens"] > 0


def test_an_answer_that_is_fine_is_streamed_once_it_was_judged(api: Api, script: Script, judge: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), chunk(content="lo"), chunk(finish="stop")))
    judge.then(FINE, replace(FINE, pieces=[gate, *FINE.pieces]))
    with api.stream(model=script.model, input="Hi", moderation=policy(judge, output=BLOCK)) as live:
        assert [live.next()["type"], live.next()["type"]] == ["response.created", "response.in_progress"]
        judge.wait_for_call(1)
        gate.open()
        rest = live.rest()
    assert [event["delta"] for event in rest if event["type"] == "response.output_text.delta"] == ["Hel", "lo"]
    assert rest[-1]["response"]["moderation"]["output"] == shown(flagged=False)


def test_a_run_that_is_cancelled_keeps_what_it_held_back(api: Api, script: Script, judge: Script) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(disconnect_grace_seconds=0)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop")))
    judge.then(FINE)
    body = {"model": script.model, "input": "Hi", "stream": True, "moderation": policy(judge, output=BLOCK)}
    with api.open("/responses", body):
        gate.wait_until_reached()
    eventually(lambda: responses_of(api) == [("cancelled", "")])
    with scope.team(api.caller.team.pk):
        response_id = Response.objects.get().pk
    assert api.retrieve(response_id)["output"] == []


def test_a_run_that_is_over_is_not_cancelled_while_it_is_judged(api: Api, script: Script, judge: Script) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(disconnect_grace_seconds=0)
    gate = Gate()
    script.say("Hello")
    judge.then(FINE, replace(FINE, pieces=[gate, *FINE.pieces]))
    body = {"model": script.model, "input": "Hi", "stream": True, "moderation": policy(judge)}
    with api.open("/responses", body):
        judge.wait_for_call(1)
    eventually(lambda: responses_of(api) == [("completed", "Hello")])
    with scope.team(api.caller.team.pk):
        response_id = Response.objects.get().pk
    assert api.retrieve(response_id)["moderation"]["output"]["type"] == "error"


def test_a_judge_that_fails_is_told_of_where_it_only_scores(api: Api, script: Script, judge: Script) -> None:
    script.say("Hello")
    judge.then(refusal(400, "No."), whole({"results": []}))
    moderation = api.create(model=script.model, input="Hi", moderation=policy(judge))["moderation"]
    assert [moderation[side]["type"] for side in ("input", "output")] == ["error", "error"]


@pytest.mark.parametrize("failing", [refusal(400, "No."), whole({"results": []}), whole({"results": "none"})])
def test_a_judge_that_fails_stops_what_waits_for_its_word(
    api: Api, script: Script, judge: Script, failing: Answer
) -> None:
    judge.then(failing, FINE, failing)
    script.say("Hello")
    body = {"model": script.model, "input": "Hi"}
    before = error(api.post("/responses", {**body, "moderation": policy(judge, input=BLOCK)}))
    assert before[0] in {400, 500}
    assert responses_of(api) == []
    after = error(api.post("/responses", {**body, "moderation": policy(judge, output=BLOCK)}))
    assert (after[0], after[2]) == (500, "server_error")
    assert responses_of(api) == [("failed", "")]


def test_a_model_that_does_not_judge_is_a_mistake(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": "Hi", "moderation": {"model": script.model}}
    assert error(api.post("/responses", body)) == (400, "moderation.model", "unsupported_value")


def test_a_judge_that_does_not_exist_is_a_mistake(make_api: MakeApi, script: Script, judge: Script) -> None:
    api = make_api(allowed_models=[script.model])
    body = {"model": script.model, "input": "Hi", "moderation": policy(judge)}
    assert error(api.post("/responses", body)) == (400, "moderation.model", "model_not_found")


def test_a_key_needs_to_be_allowed_to_moderate(make_api: MakeApi, script: Script, judge: Script) -> None:
    api = make_api(scopes=[Scope.RESPONSES_WRITE.value])
    body = {"model": script.model, "input": "Hi", "moderation": policy(judge)}
    assert error(api.post("/responses", body)) == (403, None, "insufficient_scope")


def test_calls_are_held_back_and_sent_like_words(api: Api, script: Script, judge: Script) -> None:
    script.call(look="{}")
    judge.then(FINE, FINE)
    tool = {"type": "function", "name": "look"}
    response = api.create(model=script.model, input="Hi", tools=[tool], moderation=policy(judge, output=BLOCK))
    assert [item["type"] for item in response["output"]] == ["function_call"]


@pytest.mark.usefixtures("worker")
def test_answers_in_the_background_are_judged_as_well(api: Api, script: Script, judge: Script) -> None:
    judge.then(FINE, BAD)
    asked = {"model": script.say("Awful.").model, "input": "Hi", "moderation": policy(judge, output=BLOCK)}
    failed = ended(api, api.create(**asked, background=True)["id"])
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert failed["moderation"] == {"input": shown(flagged=False), "output": shown(flagged=True)}


def test_input_is_judged_before_a_response_is_queued(api: Api, script: Script, judge: Script) -> None:
    judge.then(BAD)
    asked = {"model": script.model, "input": "Hi", "moderation": policy(judge, input=BLOCK), "background": True}
    assert error(api.post("/responses", asked))[0] == 400
