"""Truncation of conversations that exceed the context window."""

from typing import Any

import pytest

from conversations.items import from_wire
from engine.compaction.window import fit, is_too_long
from engine.turn import Sampling

WORDS = "x" * 400  # a hundred tokens


def message(role: str, text: str = WORDS) -> dict[str, Any]:
    """Return a message."""
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "message", "role": role, "id": "msg_1", "status": "completed", "content": [part]}
    return {"type": "message", "role": role, "content": text}


def call(call_id: str) -> dict[str, Any]:
    """Return a function call."""
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": WORDS}


def output(call_id: str) -> dict[str, Any]:
    """Return a function call output."""
    return {"type": "function_call_output", "call_id": call_id, "output": WORDS}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def left(*bodies: dict[str, Any], window: int | None, halved: bool = False) -> list[int]:
    """Return the positions of the remaining items."""
    items = [from_wire(body) for body in bodies]
    kept = fit(items, window=window, instructions=None, sampling=Sampling(), halved=halved)
    return [position for position, item in enumerate(items) if any(item is other for other in kept)]


def test_an_input_that_fits_is_unchanged() -> None:
    assert left(message("user"), message("assistant"), message("user"), window=300) == [0, 1, 2]


def test_the_oldest_items_are_dropped_first() -> None:
    assert left(message("user"), message("assistant"), message("user"), window=200) == [1, 2]


def test_the_last_user_message_is_kept() -> None:
    assert left(message("user"), message("user"), message("assistant"), window=1) == [1]


def test_developer_and_system_messages_are_kept() -> None:
    assert left(message("developer"), message("user"), message("system"), message("user"), window=300) == [0, 2, 3]


def test_a_call_is_dropped_with_its_output_and_reasoning() -> None:
    turn = [REASONING, call("a"), output("a")]
    assert left(*turn, message("assistant"), message("user"), window=250) == [3, 4]


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local shell": (
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "action": {"command": [WORDS], "env": {}}},
        {"type": "local_shell_call_output", "id": "a", "output": WORDS},
    ),
    "approval": (
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "f", "arguments": WORDS},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": WORDS},
    ),
    "search": (
        {"type": "tool_search_call", "execution": "server", "arguments": {"query": WORDS}},
        {"type": "tool_search_output", "execution": "server", "tools": [{"type": "function", "name": WORDS}]},
    ),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_calls_with_other_id_fields_are_dropped_with_their_outputs(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert left(*pair, message("assistant"), message("user"), window=310) == [2, 3]


def test_parallel_calls_are_dropped_each_with_its_own_output() -> None:
    turn = [call("a"), call("b"), output("a"), output("b")]
    assert left(message("user"), *turn, window=310) == [0, 2, 4]


def test_half_of_the_input_is_kept_when_the_window_is_unknown() -> None:
    items = [message("user")] * 4
    assert len(left(*[dict(item) for item in items], window=None, halved=True)) == 2


def test_instructions_count_against_the_window() -> None:
    items = [from_wire(message("user")), from_wire(message("user"))]
    assert not is_too_long(window=200, instructions=None, items=items, sampling=Sampling())
    assert is_too_long(window=200, instructions="Be kind.", items=items, sampling=Sampling())
    assert len(fit(items, window=200, instructions="Be kind.", sampling=Sampling(), halved=False)) == 1


def test_no_input_is_too_long_for_an_unknown_window() -> None:
    assert not is_too_long(window=None, instructions=WORDS, items=[], sampling=Sampling())
