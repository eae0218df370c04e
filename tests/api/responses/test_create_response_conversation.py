"""`conversation`: its items in the context of the model, the items that a response adds, and its lock."""

from typing import Any

import pytest

from conversations.models import Item
from responses.models import ConversationLock, ToolCall
from tenants import scope
from tenants.models import Scope
from tests.support.api import Api, MakeApi, error, ok
from tests.support.background import ended
from tests.support.chunks import calls, chunk, text
from tests.support.conversations import add, begin, ids, items, words
from tests.support.upstream import Cut, Gate, Script, refusal, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

LOCKED = (400, "conversation", "conversation_locked")


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def is_free(api: Api, conversation_id: str) -> bool:
    with scope.team(api.caller.team.pk):
        return not ConversationLock.objects.filter(pk=conversation_id).exists()


def test_a_conversation_continues_from_response_to_response(api: Api, script: Script, database: None) -> None:
    script.say("1").say("2")
    name = begin(api, "a")
    first = api.create(model=script.model, input="b", conversation=name, instructions="Be brief.")
    second = api.create(model=script.model, input="c", conversation={"id": name})
    assert script.messages[0] == [{"role": "system", "content": "Be brief."}, user("a"), user("b")]
    assert script.messages[1] == [user("a"), user("b"), assistant("1"), user("c")]
    assert first["conversation"] == second["conversation"] == {"id": name}
    assert words(api, name) == ["a", "b", "1", "c", "2"]
    assert ids(api, name)[1] == api.input_items(first["id"])[-1]["id"]
    listed = api.get("/responses", conversation_id=name).json()["data"]
    assert [one["id"] for one in listed] == [second["id"], first["id"]]
    assert is_free(api, name)


def test_a_conversation_can_be_continued_as_soon_as_a_stream_is_completed(api: Api, script: Script) -> None:
    script.say("1").say("2")
    name = begin(api)
    with api.stream(model=script.model, input="a", conversation=name) as live:
        completed = next(event for event in live.events if event["type"] == "response.completed")
        api.create(model=script.model, input="b", conversation=name)
    assert completed["response"]["conversation"] == {"id": name}
    assert words(api, name) == ["a", "1", "b", "2"]


def test_the_items_of_a_response_are_shared_and_not_copied(api: Api, script: Script, database: None) -> None:
    script.say("1")
    name = begin(api, "a")
    response = api.create(model=script.model, input="b", conversation=name)
    with scope.team(api.caller.team.pk):
        assert Item.objects.count() == 3
    assert ids(api, name)[2] == response["output"][0]["id"]
    ok(api.delete(f"/responses/{response['id']}"))
    assert words(api, name) == ["a", "b", "1"]


def test_the_history_counts_as_input_of_a_response(api: Api, script: Script) -> None:
    script.say("1").say("2")
    name = begin(api, "a")
    first = api.create(model=script.model, input="b", conversation=name)
    api.create(model=script.model, input="c", conversation=name)
    add(api, name, "later")
    assert [item["content"][0]["text"] for item in api.input_items(first["id"])] == ["a", "b"]


@pytest.mark.parametrize("streams", [False, True])
def test_an_unstored_response_adds_its_items_to_the_conversation(
    api: Api, script: Script, streams: bool, database: None
) -> None:
    script.say("1").say("2")
    name = begin(api, "a")
    referred = {"type": "item_reference", "id": ids(api, begin(api, "elsewhere"))[0]}
    body = {"model": script.model, "input": [user("b"), referred], "conversation": name, "store": False}
    response = api.events(**body)[-1]["response"] if streams else api.create(**body)
    assert api.get(f"/responses/{response['id']}").status_code == 404
    assert words(api, name) == ["a", "b", "elsewhere", "1"]
    assert ids(api, name)[3] == response["output"][0]["id"]
    api.create(model=script.model, input="c", conversation=name)
    assert script.messages[1][-2:] == [assistant("1"), user("c")]


def test_outputs_follow_their_calls(api: Api, script: Script, database: None) -> None:
    script.then(stream(*calls(look='{"at":1}'))).say("Seen.")
    name = begin(api)
    asked = api.create(model=script.model, input="a", conversation=name)
    output = {"type": "function_call_output", "call_id": "call_look", "output": "a cat"}
    api.create(model=script.model, input=[output], conversation=name)
    assert [item["type"] for item in items(api, name)] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    with scope.team(api.caller.team.pk):
        (call,) = ToolCall.objects.filter(response_id=asked["id"])
    assert (call.status, call.output) == ("completed", "a cat")


def test_an_incomplete_response_adds_its_items_and_an_interrupted_call_is_not_read(api: Api, script: Script) -> None:
    begun = {"index": 0, "id": "call_look", "function": {"name": "look", "arguments": '{"at"'}}
    script.then(stream(chunk(content="Hm"), chunk(tool_calls=[begun]), chunk(finish="length"))).say("2")
    name = begin(api)
    response = api.create(model=script.model, input="a", conversation=name)
    assert response["status"] == "incomplete"
    assert [item["type"] for item in items(api, name)] == ["message", "message", "function_call"]
    api.create(model=script.model, input="b", conversation=name)
    assert script.messages[1] == [user("a"), assistant("Hm"), user("b")]


@pytest.mark.parametrize("streams", [False, True])
def test_a_failed_response_adds_no_items(api: Api, script: Script, streams: bool, database: None) -> None:
    script.then(stream(chunk(content="Hal"), Cut())) if streams else script.then(refusal(500))
    name = begin(api, "a")
    body = {"model": script.model, "input": "b", "conversation": name}
    if streams:
        assert api.events(**body)[-1]["type"] == "response.failed"
    else:
        assert api.post("/responses", body).status_code == 500
    assert words(api, name) == ["a"]
    assert is_free(api, name)


def test_the_next_response_reads_items_added_and_deleted_during_a_run(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1"))).say("2")
    name = begin(api, "a", "b")
    with api.stream(model=script.model, input="c", conversation=name) as live:
        gate.wait_until_reached()
        add(api, name, "meanwhile")
        ok(api.delete(f"/conversations/{name}/items/{ids(api, name)[0]}"))
        gate.open()
        live.rest()
    assert words(api, name) == ["b", "meanwhile", "c", "1"]
    api.create(model=script.model, input="d", conversation=name)
    assert script.messages[0] == [user("a"), user("b"), user("c")]
    assert script.messages[1] == [user("b"), user("meanwhile"), user("c"), assistant("1"), user("d")]


# -- other ways to ask ----------------------------------------------------------------------------------------------


def test_a_websocket_continues_a_conversation_with_and_without_storing(
    api: Api, script: Script, web: WebProcess, database: None
) -> None:
    script.say("1").say("2").say("3")
    name = begin(api, "a")
    with open_socket(web.url, secret=api.caller.secret) as socket:
        unstored = socket.respond(model=script.model, input="b", conversation=name, store=False)
        follows = socket.respond(model=script.model, input="d", previous_response_id=unstored["id"])
        socket.respond(model=script.model, input="c", conversation=name)
    assert words(api, name) == ["a", "b", "1", "c", "3"]
    assert script.messages[1] == [user("a"), user("b"), assistant("1"), user("d")]
    assert [item["content"][0]["text"] for item in api.input_items(follows["id"])] == ["a", "b", "1", "d"]


def test_a_response_without_output_adds_its_input(api: Api, script: Script, database: None) -> None:
    name = begin(api, "a")
    api.create(model=script.model, input="b", conversation=name, generate=False)
    assert words(api, name) == ["a", "b"]


@pytest.mark.usefixtures("worker")
def test_a_background_response_locks_its_conversation_from_the_queue_to_its_end(
    api: Api, script: Script, database: None
) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1"))).say("2")
    name = begin(api, "a")
    queued = api.create(model=script.model, input="b", conversation=name, background=True)
    body = {"model": script.model, "input": "c", "conversation": name}
    assert error(api.post("/responses", body)) == LOCKED
    gate.wait_until_reached()
    assert error(api.post("/responses", body)) == LOCKED
    gate.open()
    assert ended(api, queued["id"])["conversation"] == {"id": name}
    ok(api.post("/responses", body))
    assert words(api, name) == ["a", "b", "1", "c", "2"]


@pytest.mark.usefixtures("worker")
def test_a_cancelled_background_response_adds_no_items(api: Api, script: Script, database: None) -> None:
    script.then(stream(chunk(content="Hal"), Gate(), *text("lo")))
    name = begin(api, "a")
    queued = api.create(model=script.model, input="b", conversation=name, background=True)
    script.wait_for_call()
    assert ok(api.post(f"/responses/{queued['id']}/cancel", b""))["status"] == "cancelled"
    assert is_free(api, name)
    assert words(api, name) == ["a"]


# -- one at a time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
def test_a_second_concurrent_response_gets_a_conflict(api: Api, script: Script, streams: bool) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1"))).say("2")
    name = begin(api)
    with api.stream(model=script.model, input="a", conversation=name) as live:
        gate.wait_until_reached()
        refused = api.post("/responses", {"model": script.model, "input": "b", "conversation": name, "stream": streams})
        gate.open()
        live.rest()
    assert error(refused) == LOCKED
    message = "Another process is currently operating on this conversation. Please retry in a few seconds."
    assert refused.json()["error"]["message"] == message
    api.create(model=script.model, input="c", conversation=name)
    assert words(api, name) == ["a", "1", "c", "2"]


def test_a_rejected_request_unlocks_the_conversation(api: Api, script: Script, database: None) -> None:
    name = begin(api, "a")
    image = {"type": "input_image", "file_id": "file-unknown"}
    for wrong in (
        {"input": [{"type": "function_call_output", "call_id": "call_x", "output": "?"}]},
        {"input": [{"role": "user", "content": [image]}]},
    ):
        answer = api.post("/responses", {"model": script.model, "conversation": name, **wrong})
        assert answer.status_code == 400
        assert is_free(api, name)


def test_a_disconnect_unlocks_the_conversation_at_the_end_of_the_run(
    api: Api, script: Script, make_api: MakeApi, database: None
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate, *text("lo")))
    name = begin(api)
    with api.stream(model=script.model, input="a", conversation=name, store=False) as live:
        live.next()
        gate.wait_until_reached()
    eventually(lambda: is_free(api, name))
    gate.open()
    assert words(api, name) == []


def test_a_conversation_deleted_during_a_run_gets_no_items(api: Api, script: Script, database: None) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1")))
    name = begin(api, "a")
    with api.stream(model=script.model, input="b", conversation=name) as live:
        gate.wait_until_reached()
        ok(api.delete(f"/conversations/{name}"))
        gate.open()
        ended = live.rest()[-1]
    assert ended["type"] == "response.completed"
    assert [item["content"][0]["text"] for item in api.input_items(ended["response"]["id"])] == ["b"]
    assert is_free(api, name)
    assert api.get(f"/conversations/{name}/items").status_code == 404


def test_a_response_deleted_during_its_run_adds_no_items(api: Api, script: Script, database: None) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate, *text("lo"))).say("2")
    name = begin(api, "a")
    with api.stream(model=script.model, input="b", conversation=name) as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
        ok(api.delete(f"/responses/{response_id}"))
        assert is_free(api, name)
        api.create(model=script.model, input="c", conversation=name)
        gate.open()
        live.rest()
    assert words(api, name) == ["a", "c", "2"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_conversation_and_a_previous_response_exclude_each_other(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": "a", "conversation": "conv_x", "previous_response_id": "resp_x"}
    answer = api.post("/responses", body)
    assert error(answer) == (400, None, "mutually_exclusive_parameters")
    assert answer.json()["error"]["message"] == (
        "Mutually exclusive parameters. Ensure you are only providing one of: 'previous_response_id' or 'conversation'."
    )


def test_another_teams_conversation_gets_the_answer_of_an_unknown_id(
    api: Api, outsider: Api, script: Script, database: None
) -> None:
    name = begin(api, "a")
    for path in ("/responses", "/responses/input_tokens"):
        answers = [
            outsider.post(path, {"model": script.model, "input": "b", "conversation": wanted})
            for wanted in (name, "conv_unknown", "conv_\x00")
        ]
        assert [error(answer) for answer in answers] == 3 * [(404, None, None)]
    assert is_free(api, name)


@pytest.mark.parametrize("wrong", [5, "", {}, {"id": None}, {"id": "conv_x", "more": 1}, ["conv_x"], "c" * 65])
def test_an_invalid_conversation_id_is_named(api: Api, script: Script, wrong: Any) -> None:
    answer = api.post("/responses", {"model": script.model, "input": "a", "conversation": wrong})
    status, param, _ = error(answer)
    assert status == 400
    assert param is not None
    assert param.startswith("conversation")


def test_an_item_occurs_once_in_a_conversation(api: Api, script: Script, database: None) -> None:
    name = begin(api, "a")
    (taken,) = ids(api, name)
    for again in (
        [user("b") | {"id": taken}],
        [{"type": "item_reference", "id": taken}],
        2 * [user("b") | {"id": "msg_b"}],
    ):
        answer = api.post("/responses", {"model": script.model, "input": again, "conversation": name})
        assert error(answer)[:2] == (400, "input")
        assert "Duplicate item found" in answer.json()["error"]["message"]
    assert is_free(api, name)


def test_continuing_a_conversation_requires_the_write_scope(make_api: MakeApi, api: Api, script: Script) -> None:
    name = begin(api)
    reader = make_api(team=api.caller.team, scopes=[Scope.RESPONSES_WRITE, Scope.CONVERSATIONS_READ])
    answer = reader.post("/responses", {"model": script.model, "input": "a", "conversation": name})
    assert error(answer) == (403, None, "insufficient_scope")
    assert ok(reader.post("/responses/input_tokens", {"input": "a", "conversation": name}))["input_tokens"] > 0


def test_counting_the_tokens_of_a_conversation_stores_nothing(api: Api, script: Script, database: None) -> None:
    name = begin(api, "a" * 4000)
    alone = ok(api.post("/responses/input_tokens", {"input": "b"}))["input_tokens"]
    counted = ok(api.post("/responses/input_tokens", {"input": "b", "conversation": name}))["input_tokens"]
    assert counted >= alone + 1000
    assert len(items(api, name)) == 1
    assert is_free(api, name)


def spoil(api: Api, item_type: str) -> None:
    """Make the team's stored items of a type unreadable, as an earlier version has written some."""
    with scope.team(api.caller.team.pk):
        for item in Item.objects.filter(type=item_type):
            part = {"type": "summary_text", "text": "Hm."}
            spoilt = {"content": [part]} if item_type == "message" else {"arguments": None}
            Item.objects.filter(pk=item.key).update(body={**item.body, **spoilt})


@pytest.mark.parametrize("chained", [True, False], ids=["chain", "conversation"])
def test_a_stored_item_that_cannot_be_read_is_skipped(api: Api, script: Script, chained: bool) -> None:
    script.say("1").say("2")
    name = begin(api)
    first = api.create(model=script.model, input="a", **({} if chained else {"conversation": name}))
    spoil(api, "message")
    link = {"previous_response_id": first["id"]} if chained else {"conversation": name}
    second = api.create(model=script.model, input="b", **link)
    assert second["status"] == "completed"
    assert script.messages[1] == [user("b")]


def test_the_output_of_a_call_that_cannot_be_read_is_skipped(api: Api, script: Script) -> None:
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    script.call(look="{}").say("1").say("2")
    name = begin(api)
    first = api.create(model=script.model, input="a", conversation=name, tools=[look])
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "A cat."}
    api.create(model=script.model, input=[output], conversation=name)
    spoil(api, "function_call")
    api.create(model=script.model, input="b", conversation=name)
    assert script.messages[2] == [user("a"), assistant("1"), user("b")]
