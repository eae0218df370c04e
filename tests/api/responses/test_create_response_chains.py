"""`previous_response_id`: which responses can be continued, and the context of the next response."""

from tests.support.api import Api, error
from tests.support.chunks import calls, text
from tests.support.upstream import Gate, Script, refusal, stream


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def test_the_model_reads_a_chain_from_its_beginning(api: Api, script: Script) -> None:
    script.say("1").say("2").say("3")
    first = api.create(model=script.model, input="a")
    second = api.create(model=script.model, input="b", previous_response_id=first["id"])
    third = api.create(model=script.model, input="c", previous_response_id=second["id"])
    assert script.messages[1] == [user("a"), assistant("1"), user("b")]
    assert script.messages[2] == [user("a"), assistant("1"), user("b"), assistant("2"), user("c")]
    assert third["previous_response_id"] == second["id"]


def test_two_responses_may_continue_the_same_response(api: Api, script: Script) -> None:
    script.say("1").say("left").say("right")
    first = api.create(model=script.model, input="a")
    for word in ("l", "r"):
        api.create(model=script.model, input=word, previous_response_id=first["id"])
    assert script.messages[1] == [user("a"), assistant("1"), user("l")]
    assert script.messages[2] == [user("a"), assistant("1"), user("r")]


def test_instructions_are_not_inherited(api: Api, script: Script) -> None:
    script.say("Ahoy").say("Hello")
    first = api.create(model=script.model, input="a", instructions="Talk like a pirate.")
    second = api.create(model=script.model, input="b", previous_response_id=first["id"])
    assert script.messages[1] == [user("a"), assistant("Ahoy"), user("b")]
    assert second["instructions"] is None


def test_new_instructions_precede_the_chain(api: Api, script: Script) -> None:
    script.say("1").say("2")
    first = api.create(model=script.model, input="a", instructions="Old.")
    api.create(model=script.model, input="b", previous_response_id=first["id"], instructions="New.")
    assert script.messages[1][0] == {"role": "system", "content": "New."}
    assert script.messages[1][1:] == [user("a"), assistant("1"), user("b")]


def test_tools_are_not_inherited(api: Api, script: Script) -> None:
    script.say("1").say("2")
    tools = [{"type": "function", "name": "look", "parameters": {}}]
    first = api.create(model=script.model, input="a", tools=tools)
    second = api.create(model=script.model, input="b", previous_response_id=first["id"])
    assert (second["tools"], "tools" in script.bodies[1]) == ([], False)


def test_a_response_may_continue_without_new_input(api: Api, script: Script) -> None:
    script.say("1").say("2")
    first = api.create(model=script.model, input="a")
    api.create(model=script.model, input=[], previous_response_id=first["id"])
    assert script.messages[1] == [user("a"), assistant("1")]


def test_a_response_may_continue_with_another_model(api: Api, script: Script, other_script: Script) -> None:
    script.say("1")
    other_script.say("2")
    first = api.create(model=script.model, input="a")
    api.create(model=other_script.model, input="b", previous_response_id=first["id"])
    assert other_script.messages == [[user("a"), assistant("1"), user("b")]]


def test_a_streamed_response_can_be_continued_as_soon_as_it_is_completed(api: Api, script: Script) -> None:
    script.say("1").say("2")
    with api.stream(model=script.model, input="a") as live:
        completed = next(event for event in live.events if event["type"] == "response.completed")
        api.create(model=script.model, input="b", previous_response_id=completed["response"]["id"])
    assert script.messages[1] == [user("a"), assistant("1"), user("b")]


def test_an_unstored_response_cannot_be_continued(api: Api, script: Script) -> None:
    script.say("1")
    first = api.create(model=script.model, input="a", store=False)
    answer = api.post("/responses", {"model": script.model, "input": "b", "previous_response_id": first["id"]})
    assert error(answer) == (400, "previous_response_id", "previous_response_not_found")


def test_a_deleted_response_cannot_be_continued(api: Api, script: Script) -> None:
    script.say("1")
    first = api.create(model=script.model, input="a")
    api.delete(f"/responses/{first['id']}")
    answer = api.post("/responses", {"model": script.model, "input": "b", "previous_response_id": first["id"]})
    assert error(answer) == (400, "previous_response_id", "previous_response_not_found")


def test_an_unfinished_response_cannot_be_continued(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1")))
    with api.stream(model=script.model, input="a") as live:
        running = live.next()["response"]["id"]
        answer = api.post("/responses", {"model": script.model, "input": "b", "previous_response_id": running})
        gate.open()
        live.rest()
    assert error(answer)[:2] == (400, "previous_response_id")


def test_an_unstored_response_reads_the_chain(api: Api, script: Script) -> None:
    script.say("1").say("2")
    first = api.create(model=script.model, input="a")
    api.create(model=script.model, input="b", previous_response_id=first["id"], store=False)
    assert script.messages[1] == [user("a"), assistant("1"), user("b")]


def test_a_failed_response_can_be_continued_with_its_output(api: Api, script: Script) -> None:
    script.then(refusal(500)).say("2")
    api.post("/responses", {"model": script.model, "input": "a"})
    (failed,) = api.get("/responses").json()["data"]
    api.create(model=script.model, input="b", previous_response_id=failed["id"])
    assert script.messages[1] == [user("a"), user("b")]


def test_the_tokens_of_a_chain_count_as_input_of_each_turn(api: Api, script: Script) -> None:
    """The count is the upstream's: nothing is added up over the chain."""
    script.say("1").say("2")
    first = api.create(model=script.model, input="a")
    second = api.create(model=script.model, input="b", previous_response_id=first["id"])
    assert second["usage"] == first["usage"]


def test_calls_and_outputs_keep_their_order_in_a_chain(api: Api, script: Script) -> None:
    script.then(stream(*calls(look='{"at":1}'))).say("Seen.").say("Bye.")
    first = api.create(model=script.model, input="a")
    output = [{"type": "function_call_output", "call_id": "call_look", "output": "a cat"}]
    second = api.create(model=script.model, input=output, previous_response_id=first["id"])
    api.create(model=script.model, input="b", previous_response_id=second["id"])
    function = {"name": "look", "arguments": '{"at":1}'}
    asked = {"role": "assistant", "content": None}
    asked["tool_calls"] = [{"id": "call_look", "type": "function", "function": function}]  # type: ignore[assignment]
    answered = {"role": "tool", "tool_call_id": "call_look", "content": "a cat"}
    assert script.messages[2] == [user("a"), asked, answered, assistant("Seen."), user("b")]
