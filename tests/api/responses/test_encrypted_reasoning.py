"""`encrypted_content`: reasoning that clients store encrypted, and that only the same team can send back."""

from typing import Any

import pytest

from tests.support.api import Api, MakeApi, error, ok
from tests.support.chunks import chunk, usage
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, stream

THOUGHT = "Twelve times seven is eighty-four."
ASK = {"role": "user", "content": "What is 12*7?"}


def think(script: Script, thought: str = THOUGHT, answer: str = "84") -> Script:
    """Answer the next call after some reasoning."""
    pieces = [chunk(reasoning_content=thought), chunk(content=answer), chunk(finish="stop"), usage()]
    return script.then(stream(*pieces))


def reasoning_of(response: dict[str, Any]) -> dict[str, Any]:
    (item,) = [item for item in response["output"] if item["type"] == "reasoning"]
    return dict(item)


def sent_back(script: Script, call: int) -> list[str]:
    """Return the reasoning in the messages that the upstream received."""
    return [m["reasoning_content"] for m in script.messages[call] if "reasoning_content" in m]


def test_finished_reasoning_items_have_encrypted_content(api: Api, script: Script) -> None:
    events = api.events(model=think(script).model, input="What is 12*7?")
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert "encrypted_content" not in added
    assert done["encrypted_content"].startswith("s1.")
    assert THOUGHT not in done["encrypted_content"]
    assert reasoning_of(events[-1]["response"]) == done
    assert reasoning_of(api.retrieve(events[-1]["response"]["id"])) == done


@pytest.mark.parametrize("left_out", [(), ("id",), ("content",), ("id", "content", "status"), ("summary", "content")])
def test_encrypted_content_alone_restores_the_reasoning(api: Api, script: Script, left_out: tuple[str, ...]) -> None:
    think(describe(script, reasoning_field="reasoning_content")).say("Eighty-four.")
    thought = reasoning_of(api.create(model=script.model, input="What is 12*7?", store=False))
    given = {name: value for name, value in thought.items() if name not in left_out}
    answer = {"role": "assistant", "content": "84"}
    api.create(model=script.model, input=[ASK, given, answer], store=False)
    assert sent_back(script, 1) == [THOUGHT]


def test_the_item_is_stored_as_the_client_sent_it(api: Api, script: Script) -> None:
    think(script).say("Yes.")
    thought = reasoning_of(api.create(model=script.model, input="What is 12*7?"))
    del thought["content"]
    second = api.create(model=script.model, input=[ASK, thought, {"role": "assistant", "content": "84"}, ASK])
    assert api.input_items(second["id"])[1] == thought


def test_an_unstored_response_can_send_it_after_a_stored_one(api: Api, script: Script) -> None:
    think(describe(script, reasoning_field="reasoning_content")).say("Yes.")
    first = api.create(model=script.model, input="What is 12*7?", reasoning={"context": "all_turns"})
    thought = reasoning_of(first)
    del thought["id"], thought["content"]
    api.create(
        model=script.model,
        input=[thought, {"role": "assistant", "content": "Really."}, ASK],
        previous_response_id=first["id"],
        store=False,
        reasoning={"context": "all_turns"},
    )
    assert sent_back(script, 1) == [THOUGHT, THOUGHT]


@pytest.mark.parametrize("token", ["gAAAAABm", "s1.AAAA", "s1.", "x" * 10_000])
def test_foreign_encrypted_content_is_rejected(api: Api, script: Script, token: str) -> None:
    given = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": token}
    for path in ("/responses", "/responses/input_tokens"):
        answer = api.post(path, {"model": script.model, "input": [given, ASK]})
        assert error(answer) == (400, "input", "invalid_encrypted_content")
        assert answer.json()["error"]["message"] == "The encrypted content for item rs_1 could not be verified."


def test_another_teams_encrypted_content_is_rejected(api: Api, outsider: Api, script: Script) -> None:
    thought = reasoning_of(outsider.create(model=think(script).model, input="What is 12*7?"))
    answer = api.post("/responses", {"model": script.model, "input": [thought, ASK]})
    assert error(answer) == (400, "input", "invalid_encrypted_content")


def test_another_key_of_the_team_can_send_it(api: Api, make_api: MakeApi, script: Script) -> None:
    think(describe(script, reasoning_field="reasoning_content")).say("Yes.")
    thought = reasoning_of(api.create(model=script.model, input="What is 12*7?"))
    colleague = make_api(team=api.caller.team)
    colleague.create(model=script.model, input=[ASK, thought, {"role": "assistant", "content": "84"}])
    assert sent_back(script, 1) == [THOUGHT]


def test_tampered_encrypted_content_is_rejected(api: Api, script: Script) -> None:
    thought = reasoning_of(api.create(model=think(script).model, input="What is 12*7?"))
    token = thought["encrypted_content"]
    thought["encrypted_content"] = token[:30] + ("A" if token[30] != "A" else "B") + token[31:]
    answer = api.post("/responses", {"model": script.model, "input": [thought, ASK]})
    assert error(answer) == (400, "input", "invalid_encrypted_content")


def test_hidden_reasoning_is_returned_only_encrypted(api: Api, script: Script) -> None:
    think(describe(script, raw_reasoning=False, reasoning_field="reasoning_content")).say("Yes.")
    events = api.events(model=script.model, input="What is 12*7?")
    assert not [event for event in events if "reasoning_text" in str(event)]
    thought = reasoning_of(events[-1]["response"])
    assert thought.keys() == {"id", "type", "status", "summary", "encrypted_content"}
    assert thought["summary"] == []
    api.create(model=script.model, input=[ASK, thought, {"role": "assistant", "content": "84"}])
    assert sent_back(script, 1) == [THOUGHT]


def test_include_accepts_encrypted_content(api: Api, script: Script) -> None:
    body = {"model": think(script).model, "input": "Hi", "include": ["reasoning.encrypted_content"], "store": False}
    assert reasoning_of(ok(api.post("/responses", body)))["encrypted_content"]
