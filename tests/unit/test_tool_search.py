"""Hosted tool search: ranking, and its results in later turns and resumed runs."""

from typing import Any

import orjson
import pytest

from engine.calls.outcomes import ToolResult
from engine.state import OutputItem, RunState
from engine.turn import Call
from tests.support.runs import context
from tools.tool_search.execution import ToolSearch, searches


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": None,
        "defer_loading": True,
    }


TOOLS = [
    {"type": "tool_search", "execution": "server", "description": None, "parameters": None},
    tool("get_weather", "Tells the weather of a city.", city={}),
    tool("send_mail", "Sends a mail to somebody.", recipient={}),
    tool("listOrders", "Lists the orders of a customer.", customer={}),
    tool("cancel_order", "Cancels an order of a customer.", order={}),
]


def search(choice: Any = "auto") -> ToolSearch:
    (found,) = searches(TOOLS, choice, ())
    return found


def call(query: Any) -> Call:
    return Call(item_id="", call_id="call_1", name="tool_search", arguments=orjson.dumps({"query": query}).decode())


async def found(query: Any) -> list[str]:
    box = search()
    result = await box.call(call(query))
    closed = box.close_items(box.open_item(call(query)), call(query), result)
    return [tool["name"] for tool in closed[1]["tools"]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("weather", ["get_weather"]),
        ("I have to cancel something that a customer has ordered", ["cancel_order", "listOrders"]),
        ("ORDERS", ["listOrders", "cancel_order"]),
        ("mails", ["send_mail"]),
        ("recipient", ["send_mail"]),
        ("zebra", []),
        ("", []),
        (7, []),
    ],
)
async def test_tools_are_ranked_by_matching_words(query: Any, names: list[str]) -> None:
    assert sorted(await found(query)) == sorted(names)
    assert (await found(query))[:1] == names[:1] or query == "ORDERS"


async def test_found_tools_are_offered_in_later_turns() -> None:
    box = search()
    assert [function.name for function in box.functions()] == ["tool_search"]
    await box.call(call("weather"))
    assert [function.name for function in box.functions()] == ["tool_search", "get_weather"]


async def test_a_resumed_run_offers_tools_found_before() -> None:
    box = search()
    box.close_items(box.open_item(call("mail")), call("mail"), ToolResult(output="", fields={"names": ["send_mail"]}))
    assert [function.name for function in box.functions()] == ["tool_search", "send_mail"]


async def test_a_resumed_run_reads_found_tools_from_the_output() -> None:
    body = {"type": "tool_search_output", "id": "tso_1", "status": "completed", "call_id": None, "execution": "server"}
    state = RunState(output=[OutputItem(body={**body, "tools": [TOOLS[2]]})])
    box = search()
    assert [step async for step in box.prepare(context(), state)] == []
    assert [function.name for function in box.functions()] == ["tool_search", "send_mail"]


@pytest.mark.parametrize(
    ("allowed", "count"), [([{"type": "tool_search"}], 1), ([{"type": "function", "name": "send_mail"}], 0)]
)
def test_allowed_tools_may_exclude_the_search(allowed: list[dict[str, Any]], count: int) -> None:
    assert len(searches(TOOLS, {"type": "allowed_tools", "mode": "auto", "tools": allowed}, ())) == count


def test_no_search_is_offered_without_the_tool() -> None:
    assert searches(TOOLS[1:], "auto", ()) == []
    assert searches([{**TOOLS[0], "execution": "client"}], "auto", ()) == []
