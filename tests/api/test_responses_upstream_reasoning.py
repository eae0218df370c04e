"""Reasoning of an upstream that speaks Responses itself: sealed, and brought back to nobody else."""

from typing import Any

from tests.support.api import Api
from tests.support.capable import describe
from tests.support.responses_upstream import (
    added,
    answer,
    called,
    done,
    event,
    function,
    reasoning,
    responses_script,
    said,
    thought,
)
from tests.support.upstream import Answer, Script, ScriptedUpstream

TOOLS = [function("look")]
OUTPUT = {"type": "function_call_output", "call_id": "call_look", "output": "a tree"}


def thinks_and_calls(**fields: Any) -> Answer:
    """Reasoning that leads to a call, so that it belongs to the question that is being answered."""
    return answer(thought("Hm.", **fields), called("look", "{}", index=1))


def test_what_it_encrypted_is_sealed_once_more(api: Api, relayed: Script) -> None:
    relayed.then(thinks_and_calls(encrypted_content="their secret"))
    reasoning_item = api.create(model=relayed.model, input="Hi", tools=TOOLS)["output"][0]
    assert reasoning_item["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert reasoning_item["encrypted_content"]
    assert "their secret" not in reasoning_item["encrypted_content"]


def test_it_gets_back_what_it_has_encrypted(api: Api, relayed: Script) -> None:
    relayed.then(thinks_and_calls(encrypted_content="their secret"), answer(said("A tree.")))
    first = api.create(model=relayed.model, input="Hi", tools=TOOLS)
    api.create(model=relayed.model, input=[OUTPUT], previous_response_id=first["id"], tools=TOOLS)
    assert relayed.bodies[1]["input"][1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "their secret",
    }


def test_it_gets_it_back_from_clients_who_store_nothing(api: Api, relayed: Script) -> None:
    relayed.then(thinks_and_calls(encrypted_content="their secret"), answer(said("A tree.")))
    question = {"role": "user", "content": "Hi"}
    first = api.create(model=relayed.model, input=[question], tools=TOOLS, store=False)
    api.create(model=relayed.model, input=[question, *first["output"], OUTPUT], tools=TOOLS, store=False)
    assert relayed.bodies[1]["input"][1]["encrypted_content"] == "their secret"


def test_another_upstream_never_gets_it(api: Api, relayed: Script, responses_upstream: ScriptedUpstream) -> None:
    relayed.then(thinks_and_calls(encrypted_content="their secret"))
    first = api.create(model=relayed.model, input="Hi", tools=TOOLS)
    with responses_script(responses_upstream, reasoning_field="reasoning_content") as other:
        other.then(answer(said("A tree.")))
        api.create(model=other.model, input=[OUTPUT], previous_response_id=first["id"], tools=TOOLS)
        assert [entry["type"] for entry in other.bodies[0]["input"]] == [
            "message",
            "function_call",
            "function_call_output",
        ]


def test_an_upstream_of_chat_completions_never_gets_it(api: Api, relayed: Script, script: Script) -> None:
    relayed.then(thinks_and_calls(encrypted_content="their secret"))
    first = api.create(model=relayed.model, input="Hi", tools=TOOLS)
    describe(script, reasoning_field="reasoning_details").say("A tree.")
    api.create(model=script.model, input=[OUTPUT], previous_response_id=first["id"], tools=TOOLS)
    assert "their secret" not in str(script.messages)


def test_earlier_reasoning_goes_back_only_when_asked_for(api: Api, relayed: Script) -> None:
    relayed.then(answer(thought("Hm.", encrypted_content="secret"), said("Yes.", index=1)))
    first = api.create(model=relayed.model, input="Hi")
    for context, expected in (("current_turn", 0), ("all_turns", 1)):
        relayed.then(answer(said("Sure.")))
        api.create(model=relayed.model, input="Sure?", previous_response_id=first["id"], reasoning={"context": context})
        kinds = [entry["type"] for entry in relayed.bodies[-1]["input"]]
        assert kinds.count("reasoning") == expected


def test_raw_reasoning_is_kept_from_clients_where_it_shall_be(api: Api, responses_upstream: ScriptedUpstream) -> None:
    raw = {"output_index": 0, "content_index": 0, "item_id": "rs_theirs"}
    thoughts = [
        added(0, reasoning()),
        event("content_part.added", **raw, part={"type": "reasoning_text", "text": ""}),
        event("reasoning_text.delta", **raw, delta="Secret."),
        done(0, reasoning(content=[{"type": "reasoning_text", "text": "Secret."}])),
    ]
    with responses_script(responses_upstream, raw_reasoning=False, reasoning_field="content") as script:
        script.then(answer(thoughts, called("look", "{}", index=1)), answer(said("A tree.")))
        events = api.events(model=script.model, input="Hi", tools=TOOLS)
        assert "Secret." not in str(events)
        first = events[-1]["response"]["id"]
        api.create(model=script.model, input=[OUTPUT], previous_response_id=first, tools=TOOLS)
        assert script.bodies[1]["input"][1]["content"] == [{"type": "reasoning_text", "text": "Secret."}]
