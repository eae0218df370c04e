"""Reasoning of an upstream with the Responses API: encrypted, and returned only to that upstream."""

from typing import Any

from tests.support.api import Api
from tests.support.model_capabilities import describe
from tests.support.responses_upstream import (
    added,
    answer,
    call_events,
    done,
    event,
    function,
    message_events,
    reasoning,
    reasoning_events,
    responses_script,
)
from tests.support.upstream import Answer, Script, ScriptedUpstream

TOOLS = [function("look")]
OUTPUT = {"type": "function_call_output", "call_id": "call_look", "output": "a tree"}


def thinks_and_calls(**fields: Any) -> Answer:
    """Reasoning followed by a call, which makes it part of the current answer."""
    return answer(reasoning_events("Hm.", **fields), call_events("look", "{}", index=1))


def test_encrypted_reasoning_of_the_upstream_is_encrypted_again(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(thinks_and_calls(encrypted_content="their secret"))
    reasoning_item = api.create(model=responses_api_script.model, input="Hi", tools=TOOLS)["output"][0]
    assert reasoning_item["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert reasoning_item["encrypted_content"]
    assert "their secret" not in reasoning_item["encrypted_content"]


def test_the_upstream_gets_its_encrypted_reasoning_back(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(thinks_and_calls(encrypted_content="their secret"), answer(message_events("A tree.")))
    first = api.create(model=responses_api_script.model, input="Hi", tools=TOOLS)
    api.create(model=responses_api_script.model, input=[OUTPUT], previous_response_id=first["id"], tools=TOOLS)
    assert responses_api_script.bodies[1]["input"][1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "their secret",
    }


def test_encrypted_reasoning_is_returned_without_stored_responses(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(thinks_and_calls(encrypted_content="their secret"), answer(message_events("A tree.")))
    question = {"role": "user", "content": "Hi"}
    first = api.create(model=responses_api_script.model, input=[question], tools=TOOLS, store=False)
    api.create(model=responses_api_script.model, input=[question, *first["output"], OUTPUT], tools=TOOLS, store=False)
    assert responses_api_script.bodies[1]["input"][1]["encrypted_content"] == "their secret"


def test_another_upstream_does_not_get_the_reasoning(
    api: Api, responses_api_script: Script, responses_upstream: ScriptedUpstream
) -> None:
    responses_api_script.then(thinks_and_calls(encrypted_content="their secret"))
    first = api.create(model=responses_api_script.model, input="Hi", tools=TOOLS)
    with responses_script(responses_upstream, reasoning_field="reasoning_content") as other:
        other.then(answer(message_events("A tree.")))
        api.create(model=other.model, input=[OUTPUT], previous_response_id=first["id"], tools=TOOLS)
        assert [entry["type"] for entry in other.bodies[0]["input"]] == [
            "message",
            "function_call",
            "function_call_output",
        ]


def test_a_chat_completions_upstream_does_not_get_the_reasoning(
    api: Api, responses_api_script: Script, script: Script
) -> None:
    responses_api_script.then(thinks_and_calls(encrypted_content="their secret"))
    first = api.create(model=responses_api_script.model, input="Hi", tools=TOOLS)
    describe(script, reasoning_field="reasoning_details").say("A tree.")
    api.create(model=script.model, input=[OUTPUT], previous_response_id=first["id"], tools=TOOLS)
    assert "their secret" not in str(script.messages)


def test_earlier_reasoning_is_sent_back_only_on_request(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(
        answer(reasoning_events("Hm.", encrypted_content="secret"), message_events("Yes.", index=1))
    )
    first = api.create(model=responses_api_script.model, input="Hi")
    for context, expected in (("current_turn", 0), ("all_turns", 1)):
        responses_api_script.then(answer(message_events("Sure.")))
        api.create(
            model=responses_api_script.model,
            input="Sure?",
            previous_response_id=first["id"],
            reasoning={"context": context},
        )
        kinds = [entry["type"] for entry in responses_api_script.bodies[-1]["input"]]
        assert kinds.count("reasoning") == expected


def test_hidden_raw_reasoning_is_not_shown_to_clients(api: Api, responses_upstream: ScriptedUpstream) -> None:
    raw = {"output_index": 0, "content_index": 0, "item_id": "rs_theirs"}
    thoughts = [
        added(0, reasoning()),
        event("content_part.added", **raw, part={"type": "reasoning_text", "text": ""}),
        event("reasoning_text.delta", **raw, delta="Secret."),
        done(0, reasoning(content=[{"type": "reasoning_text", "text": "Secret."}])),
    ]
    with responses_script(responses_upstream, raw_reasoning=False, reasoning_field="content") as script:
        script.then(answer(thoughts, call_events("look", "{}", index=1)), answer(message_events("A tree.")))
        events = api.events(model=script.model, input="Hi", tools=TOOLS)
        assert "Secret." not in str(events)
        first = events[-1]["response"]["id"]
        api.create(model=script.model, input=[OUTPUT], previous_response_id=first, tools=TOOLS)
        assert script.bodies[1]["input"][1]["content"] == [{"type": "reasoning_text", "text": "Secret."}]
