"""`reasoning.summary` over upstreams that send raw reasoning: by a model, or as the first sentences."""

from typing import Any

import pytest

from tenants import scope
from tenants.models import Team, UsageRecord
from tests.support.api import Api
from tests.support.chunks import calls, chunk, text, usage
from tests.support.model_capabilities import describe
from tests.support.upstream import Gate, Script, ScriptedUpstream, refusal, stream
from tests.support.waiting import eventually

RAW = "First I multiply. Then I check it. The result is even. It fits. Done."
THOUGHT = stream(chunk(reasoning=RAW), *text("84"))


def summary_of(response: dict[str, Any]) -> str:
    """Return the summary of the only reasoning item."""
    (item,) = [item for item in response["output"] if item["type"] == "reasoning"]
    assert [part["type"] for part in item["summary"]] == ["summary_text"] * len(item["summary"])
    return "".join(part["text"] for part in item["summary"])


def use_summary_model(api: Api, model: str) -> None:
    """Set the team's model. Call this before its first request, as lookups are cached for a second."""
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(summary_model=model)


def records(api: Api) -> list[UsageRecord]:
    with scope.team(api.caller.team.pk):
        return list(UsageRecord.objects.order_by("endpoint"))


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("concise", "First I multiply."),
        ("auto", "First I multiply. Then I check it."),
        ("detailed", "First I multiply. Then I check it. The result is even. It fits."),
    ],
)
def test_without_a_model_the_first_sentences_are_the_summary(
    api: Api, script: Script, style: str, expected: str
) -> None:
    script.then(THOUGHT)
    response = api.create(model=script.model, input="Hi", reasoning={"summary": style})
    assert summary_of(response) == expected
    assert summary_of(api.retrieve(response["id"])) == expected


def test_without_the_parameter_there_is_no_summary(api: Api, script: Script) -> None:
    script.then(THOUGHT)
    assert summary_of(api.create(model=script.model, input="Hi", reasoning={"effort": "low"})) == ""


def test_a_summary_is_streamed_in_openais_order(api: Api, script: Script) -> None:
    script.then(THOUGHT)
    events = api.events(model=script.model, input="Hi", reasoning={"summary": "auto"})
    kinds = [event["type"].removeprefix("response.") for event in events]
    part = "reasoning_summary_part"
    words = "reasoning_summary_text"
    first = kinds.index(f"{part}.added")
    assert kinds[first : first + 5] == [
        f"{part}.added",
        f"{words}.delta",
        f"{words}.done",
        f"{part}.done",
        "output_item.done",
    ]
    assert kinds.index("output_item.done") < kinds.index("output_text.delta")
    assert summary_of(events[-1]["response"]) == events[first + 1]["delta"] == events[first + 2]["text"]


@pytest.mark.parametrize("raw_reasoning", [True, False])
def test_a_summary_replaces_the_raw_reasoning(api: Api, script: Script, raw_reasoning: bool) -> None:
    describe(script, raw_reasoning=raw_reasoning)
    script.then(THOUGHT)
    events = api.events(model=script.model, input="Hi", reasoning={"summary": "concise"})
    assert summary_of(events[-1]["response"]) == "First I multiply."
    assert "The result is even." not in str(events)


def test_the_raw_reasoning_behind_a_summary_is_sent_in_the_next_turn(api: Api, script: Script) -> None:
    describe(script, reasoning_field="reasoning_content")
    calling = stream(chunk(reasoning=RAW), *calls(look="{}"))
    script.then(calling).say("Done.")
    function = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    first = api.create(model=script.model, input="Hi", reasoning={"summary": "auto"}, tools=[function])
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "A cat."}
    api.create(model=script.model, input=[output], previous_response_id=first["id"])
    assert [message["reasoning_content"] for message in script.messages[1] if message.get("tool_calls")] == [RAW]


def test_a_summary_of_the_upstream_is_kept(api: Api, script: Script) -> None:
    details = [{"type": "reasoning.summary", "summary": "Short.", "index": 0}]
    script.then(stream(chunk(reasoning="Short.", reasoning_details=details), chunk(reasoning=RAW), *text("84")))
    assert summary_of(api.create(model=script.model, input="Hi", reasoning={"summary": "auto"})) == "Short."


def test_the_teams_model_summarizes_with_a_usage_record_of_its_own(
    api: Api, script: Script, upstream: ScriptedUpstream
) -> None:
    with upstream.script() as summarizer:
        use_summary_model(api, summarizer.model)
        script.then(THOUGHT)
        summarizer.then(stream(*text("It ", "multiplied."), usage()))
        response = api.create(model=script.model, input="Hi", reasoning={"summary": "detailed"})
        assert summary_of(response) == "It multiplied."
        assert summarizer.messages[0][-1]["content"] == RAW
    found = {record.endpoint: record for record in records(api)}
    assert found.keys() == {"responses", "reasoning.summary"}
    own = found["reasoning.summary"]
    assert (own.model, own.object_id, own.outcome) == (summarizer.model, response["id"], "stop")
    assert own.output_tokens > 0
    # Tokens of the summary do not count as tokens of the response.
    assert response["usage"]["output_tokens"] == found["responses"].output_tokens


def test_a_failed_summary_does_not_fail_the_response(api: Api, script: Script, upstream: ScriptedUpstream) -> None:
    with upstream.script() as summarizer:
        use_summary_model(api, summarizer.model)
        script.then(THOUGHT)
        summarizer.then(refusal(400, "No."))
        response = api.create(model=script.model, input="Hi", reasoning={"summary": "concise"})
    assert (response["status"], summary_of(response)) == ("completed", "First I multiply.")
    failed, _ = records(api)
    assert (failed.endpoint, failed.outcome) == ("reasoning.summary", "failed")


def test_an_unknown_summary_model_does_not_fail_the_response(api: Api, script: Script) -> None:
    use_summary_model(api, "nobody-has-it")
    script.then(THOUGHT)
    response = api.create(model=script.model, input="Hi", reasoning={"summary": "concise"})
    assert summary_of(response) == "First I multiply."


def test_an_interrupted_summary_is_recorded(api: Api, script: Script, upstream: ScriptedUpstream) -> None:
    with upstream.script() as summarizer:
        use_summary_model(api, summarizer.model)
        script.then(THOUGHT)
        summarizer.then(stream(Gate()))
        with api.stream(model=script.model, input="Hi", reasoning={"summary": "auto"}, store=False):
            received = summarizer.wait_for_call()
        assert received.was_closed()
    eventually(lambda: len(records(api)) == 2)
    assert {record.endpoint: record.outcome for record in records(api)} == {
        "reasoning.summary": "interrupted",
        "responses": "interrupted",
    }


def test_truncated_reasoning_has_no_summary(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning=RAW), chunk(finish="length")))
    response = api.create(model=script.model, input="Hi", reasoning={"summary": "auto"})
    assert (response["status"], summary_of(response)) == ("incomplete", "")
