"""`POST /v1/responses/compact`: user messages, and an encrypted summary of all other items."""

from typing import Any

import pytest
from openai import OpenAI

from conversations.models import Item
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, MakeApi, error, ok
from tests.support.targets import Targets, upstream_id
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.usage_records import usage_records
from tests.support.waiting import eventually

SUMMARY = "The red car is in Vienna."
QUESTION = {"role": "user", "content": "Find the red car."}
RULES = {"role": "developer", "content": "Be brief."}
ASSISTANT = {"role": "assistant", "content": "I am looking."}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "a red car in Vienna"}
NEXT = {"role": "user", "content": "And where is it?"}
ITEMS = [RULES, QUESTION, ASSISTANT, CALL, OUTPUT, NEXT]


def compact(api: Api, script: Script, **body: Any) -> dict[str, Any]:
    """Return a compaction, whose summary is `SUMMARY`."""
    script.say(SUMMARY)
    return ok(api.post("/responses/compact", {"model": script.model, **body}))


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the texts that the upstream received, without the introduction of the summary."""
    return [str(message["content"]).rpartition("\n\n")[2] for message in messages]


def test_the_output_is_the_user_messages_and_one_compaction_item(api: Api, script: Script) -> None:
    answer = compact(api, script, input=ITEMS)
    *user_messages, item = answer["output"]
    assert answer["object"] == "response.compaction"
    assert [(one["role"], one["content"][0]["text"]) for one in user_messages] == [
        ("user", "Find the red car."),
        ("user", "And where is it?"),
    ]
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    assert SUMMARY not in str(answer)
    assert answer["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }


def test_the_model_receives_all_items_and_the_compaction_prompt(api: Api, script: Script) -> None:
    compact(api, script, input=ITEMS, instructions="You find cars.", prompt_cache_key="k", service_tier="flex")
    *before, last = script.messages[0]
    assert texts(before)[:3] == ["You find cars.", "Be brief.", "Find the red car."]
    assert [message["role"] for message in before[3:]] == ["assistant", "tool", "user"]
    assert (last["role"], "Write these notes" in last["content"]) == ("user", True)
    assert (script.bodies[0]["prompt_cache_key"], script.bodies[0]["service_tier"]) == ("k", "flex")


def test_the_output_can_be_used_as_the_next_input(api: Api, script: Script) -> None:
    output = compact(api, script, input=ITEMS)["output"]
    script.say("In Vienna.")
    api.create(model=script.model, input=[*output, {"role": "user", "content": "Sure?"}])
    assert texts(script.messages[1]) == ["Be brief.", "Find the red car.", "And where is it?", SUMMARY, "Sure?"]
    assert script.messages[1][3]["role"] == "system"


def test_the_compaction_item_alone_can_be_used_as_input(api: Api, script: Script) -> None:
    item = compact(api, script, input=ITEMS)["output"][-1]
    script.say("In Vienna.")
    rules = {"role": "developer", "content": "Be kind."}
    api.create(model=script.model, input=[rules, item, {"role": "user", "content": "Sure?"}])
    assert texts(script.messages[1]) == [
        "Be brief.",
        "Find the red car.",
        "And where is it?",
        "Be kind.",
        SUMMARY,
        "Sure?",
    ]


def test_a_compaction_can_be_compacted_again(api: Api, script: Script) -> None:
    first = compact(api, script, input=[QUESTION, ASSISTANT])["output"]
    second = compact(api, script, input=[*first, ASSISTANT, NEXT])["output"]
    assert [one["type"] for one in second] == ["message", "message", "compaction"]
    script.say("In Vienna.")
    api.create(model=script.model, input=second)
    assert texts(script.messages[1])[:3] == ["Find the red car.", SUMMARY, "I am looking."]
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", SUMMARY]


def test_a_chain_is_compacted_without_being_changed(api: Api, script: Script) -> None:
    script.say("I am looking.")
    first = api.create(model=script.model, input="Find the red car.")["id"]
    answer = compact(api, script, previous_response_id=first)
    assert [one["content"][0]["text"] for one in answer["output"][:-1]] == ["Find the red car."]
    assert error(api.get(f"/responses/{answer['id']}"))[0] == 404
    follow = {"model": script.model, "input": "Hi", "previous_response_id": answer["id"]}
    assert error(api.post("/responses", follow)) == (400, "previous_response_id", "previous_response_not_found")


def test_a_conversation_can_start_with_a_compaction(api: Api, script: Script) -> None:
    output = compact(api, script, input=[QUESTION, ASSISTANT])["output"]
    created = ok(api.post("/conversations", {"items": [ASSISTANT, *output]}))
    listed = ok(api.get(f"/conversations/{created['id']}/items", order="asc"))["data"]
    assert [item["type"] for item in listed] == ["message", "message", "compaction"]
    script.say("In Vienna.")
    api.create(model=script.model, input="Where?", conversation=created["id"])
    assert texts(script.messages[1]) == ["Find the red car.", SUMMARY, "Where?"]


def test_a_pending_tool_call_is_kept(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look", "async": True}]
    call = {**CALL, "async": True}
    item = compact(api, script, input=[QUESTION, call])["output"][-1]
    script.say("In Vienna.")
    api.create(model=script.model, input=[item, OUTPUT], tools=tools)
    assert [message["role"] for message in script.messages[1]] == ["user", "assistant", "tool", "system"]


def test_the_output_of_a_kept_call_stays_in_the_chain(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look", "async": True}]
    script.say(SUMMARY).say("In Vienna.").say("Sure.")
    body = {"model": script.model, "tools": tools}
    first = api.create(input=[QUESTION, {**CALL, "async": True}, {"type": "compaction_trigger"}], **body)["id"]
    second = api.create(input=[OUTPUT], previous_response_id=first, **body)["id"]
    api.create(input="Sure?", previous_response_id=second, **body)
    roles = [message["role"] for message in script.messages[2]]
    assert roles == ["user", "assistant", "tool", "system", "assistant", "user"]


def test_the_sdk_can_compact_and_continue(client: OpenAI, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.")
    done = client.responses.compact(model=script.model, input="Find the red car.")
    assert [item.type for item in done.output] == ["message", "compaction"]
    again: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in done.output]
    client.responses.create(model=script.model, input=again)
    assert texts(script.messages[1]) == ["Find the red car.", SUMMARY]


def test_only_a_usage_record_is_stored(api: Api, script: Script) -> None:
    compact(api, script, input=ITEMS)
    with scope.team(api.caller.team.pk):
        (row,) = UsageRecord.objects.filter(model=script.model)
        assert not Item.objects.filter(team_id=api.caller.team.pk).exists()
    assert (row.endpoint, row.outcome, row.input_tokens, row.output_tokens) == ("responses.compact", "compacted", 7, 3)


def test_an_interrupted_compaction_has_a_usage_record(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate))
    with api.open("/responses/compact", {"model": script.model, "input": ITEMS}):
        gate.wait_until_reached()
    with scope.team(api.caller.team.pk):
        rows = UsageRecord.objects.filter(model=script.model)
        assert eventually(lambda: [row.outcome for row in rows.all()]) == ["interrupted"]
    gate.open()


# -- errors ------------------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str, str | None]] = [
    ({"input": "Hi"}, "model", "missing_required_parameter"),
    ({"model": None, "input": "Hi"}, "model", "invalid_type"),
    ({"model": "m"}, "input", "missing_required_parameter"),
    ({"model": "m", "input": "Hi", "stream": True}, "stream", "unknown_parameter"),
    ({"model": "m", "input": "Hi", "tools": []}, "tools", "unknown_parameter"),
    ({"model": "m", "input": "Hi", "service_tier": "fastest"}, "service_tier", "invalid_value"),
    (
        {"model": "m", "input": "Hi", "prompt_cache_options": {"prewarm": True}},
        "prompt_cache_options.prewarm",
        "unknown_parameter",
    ),
    ({"model": "no-such-model", "input": "Hi"}, "model", "model_not_found"),
]


@pytest.mark.parametrize(("body", "param", "code"), BAD, ids=[str(body) for body, _, _ in BAD])
def test_an_invalid_body_is_rejected_with_param_and_code(
    api: Api, body: dict[str, Any], param: str, code: str | None
) -> None:
    status, found, user_messages = error(api.post("/responses/compact", body))
    assert (status, found, user_messages) == (400, param, code)


def test_errors_of_the_upstream_are_returned(api: Api, script: Script) -> None:
    script.then(refusal(429))
    assert error(api.post("/responses/compact", {"model": script.model, "input": "Hi"}))[0] == 429
    script.say("")
    assert error(api.post("/responses/compact", {"model": script.model, "input": "Hi"}))[0] == 500


@pytest.mark.parametrize("token", ["", "garbled", "s1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"])
def test_an_invalid_compaction_item_is_rejected(api: Api, script: Script, token: str) -> None:
    item = {"type": "compaction", "id": "cmp_9", "encrypted_content": token}
    body = {"model": script.model, "input": [item, NEXT]}
    for path in ("/responses", "/responses/compact", "/responses/input_tokens"):
        assert error(api.post(path, body)) == (400, "input", "invalid_encrypted_content")
    assert error(api.post("/conversations", {"items": [item]})) == (400, "items", "invalid_encrypted_content")


def test_another_team_cannot_use_the_item_or_the_chain(api: Api, outsider: Api, script: Script) -> None:
    item = compact(api, script, input=ITEMS)["output"][-1]
    script.say("Hi.")
    first = api.create(model=script.model, input="Hi")["id"]
    for path in ("/responses", "/responses/compact"):
        body = {"model": script.model, "input": [item, NEXT]}
        assert error(outsider.post(path, body)) == (400, "input", "invalid_encrypted_content")
        body = {"model": script.model, "input": "Hi", "previous_response_id": first}
        assert error(outsider.post(path, body)) == (400, "previous_response_id", "previous_response_not_found")


def test_a_model_that_the_key_does_not_allow_is_not_found(make_api: MakeApi, script: Script) -> None:
    body = {"model": script.model, "input": "Hi"}
    assert error(make_api(allowed_models=["another"]).post("/responses/compact", body)) == (
        400,
        "model",
        "model_not_found",
    )


def test_a_compaction_is_made_by_the_next_target(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(refusal(401))
    second.say("A summary.")
    made = ok(api.post("/responses/compact", {"model": targets.name, "input": ITEMS}))
    assert made["output"][-1]["type"] == "compaction"
    failed, answered = usage_records(api.caller, 2)
    assert [row.upstream_id for row in (failed, answered)] == [upstream_id(first), upstream_id(second)]
    assert [row.endpoint for row in (failed, answered)] == ["responses.compact"] * 2
