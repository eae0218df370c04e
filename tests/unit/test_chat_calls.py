"""Calls and outputs as chat messages: each output directly after its call."""

from typing import Any

import pytest

from conversations.items import from_wire
from providers.chat_messages import MessageFormat, messages

ASYNC: dict[str, Any] = {"async": True}


def call(call_id: str, name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **more}


def output(call_id: str, words: str = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": words}


def text_message(role: str, words: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": words}


def written(*items: dict[str, Any], **message_format: bool) -> list[dict[str, Any]]:
    return messages(None, [from_wire(item) for item in items], message_format=MessageFormat(**message_format))


def summary(found: list[dict[str, Any]]) -> list[str]:
    """Roles, with the id or the words of each message."""
    ids = [",".join(one["id"] for one in message.get("tool_calls", ())) for message in found]
    return [
        f"{message['role']} {call_ids or message.get('tool_call_id') or message['content']}"
        for message, call_ids in zip(found, ids, strict=True)
    ]


def test_consecutive_calls_become_one_message_followed_by_their_outputs() -> None:
    found = written(call("a"), call("b"), output("b"), output("a"))
    assert summary(found) == ["assistant a,b", "tool a", "tool b"]


def test_a_late_output_is_placed_after_its_call() -> None:
    found = written(
        call("a", **ASYNC), text_message("assistant", "Wait."), text_message("user", "And?"), output("a", "done")
    )
    assert summary(found) == ["assistant a", "tool a", "assistant Wait.", "user And?"]
    assert found[1]["content"] == "done"


def test_a_call_without_an_output_is_reported_as_pending() -> None:
    found = written(call("a", **ASYNC), text_message("user", "And?"))
    assert summary(found) == ["assistant a", "tool a", "user And?"]
    assert "no output yet" in found[1]["content"]


def test_a_call_id_may_be_reused_in_a_later_turn() -> None:
    found = written(call("a"), output("a", "1"), text_message("user", "Again"), call("a"), output("a", "2"))
    assert [message["content"] for message in found if message["role"] == "tool"] == ["1", "2"]


def test_text_and_calls_of_one_turn_are_one_message() -> None:
    found = written(text_message("assistant", "Let me see."), call("a"), output("a"))
    assert (found[0]["content"], len(found[0]["tool_calls"])) == ("Let me see.", 1)


@pytest.mark.parametrize(("known", "role"), [(False, "system"), (True, "developer")])
def test_developer_messages_become_system_messages_for_upstreams_without_the_role(known: bool, role: str) -> None:
    assert written(text_message("developer", "Be brief."), developer_role=known)[0]["role"] == role


def test_settings_among_the_items_are_not_messages() -> None:
    tools = {"type": "additional_tools", "role": "developer", "tools": []}
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    assert summary(written(tools, update, text_message("user", "Hi"))) == ["user Hi"]
