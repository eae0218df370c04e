"""A run with many hosted tool calls, each based on the output of the previous one: JSON, streamed and in the
background."""

from typing import Any

import orjson
import pytest

from tenants import scope
from tenants.models import SearchEngine, UsageRecord
from tests.support.api import Api, ok
from tests.support.background import ended
from tests.support.chunks import USAGE
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.search_engine import search_server
from tests.support.upstream import Script
from tests.support.workers import WorkerProcess

Json = dict[str, Any]
SUMS = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16)]
SHOWN = ["web_search_call.action.sources", "web_search_call.results", "code_interpreter_call.outputs"]
# Fields that differ between runs.
VARIABLE_FIELDS = {"id", "created_at", "completed_at", "container_id", "background", "metadata", "model", "expires_at"}
ITEMS = [
    *("mcp_list_tools", "mcp_list_tools"),
    *("mcp_call", "mcp_call", "mcp_call", "mcp_call", "mcp_call"),
    *("web_search_call", "code_interpreter_call", "message"),
]


def script_tool_chain(script: Script) -> Script:
    """Script five sums, each of the last result, then a web search and a program."""
    for number, (a, b) in enumerate(SUMS):
        server = "box" if number % 2 == 0 else "crate"
        script.call(**{f"{server}__add": orjson.dumps({"a": a, "b": b}).decode()})
    script.call(web_search=orjson.dumps({"queries": ["cats at 32"]}).decode())
    return script.call(code_interpreter=orjson.dumps({"code": "32 + 10"}).decode()).say("It is 42.")


def body(script: Script, *servers: McpServer) -> Json:
    """Return the request for such a run."""
    labelled = [tool(server, label) for server, label in zip(servers, ("box", "crate"), strict=True)]
    code = {"type": "code_interpreter", "container": {"type": "auto"}}
    tools = [*labelled, {"type": "web_search"}, code]
    return {"model": script.model, "input": "Add it up.", "tools": tools, "include": SHOWN}


def comparable(value: Any) -> Any:
    """Return a response without the fields that differ between runs."""
    if isinstance(value, dict):
        return {name: comparable(entry) for name, entry in value.items() if name not in VARIABLE_FIELDS}
    return [comparable(entry) for entry in value] if isinstance(value, list) else value


def tool_outputs(script: Script) -> list[str]:
    """Return the output of each call that the model received before it made the next one."""
    return [messages[-1]["content"] for messages in script.messages[1:]]


def check(api: Api, script: Script, response: Json) -> None:
    """Check that all calls were made once and in order, and that all tokens were counted."""
    assert [item["type"] for item in response["output"]] == ITEMS
    assert {item.get("status", "completed") for item in response["output"]} == {"completed"}
    assert [call["output"] for call in of(response, "mcp_call")] == ["2", "4", "8", "16", "32"]
    assert [call["server_label"] for call in of(response, "mcp_call")] == ["box", "crate", "box", "crate", "box"]
    assert tool_outputs(script)[:5] == ["2", "4", "8", "16", "32"]
    assert "They purr." in tool_outputs(script)[5]
    assert tool_outputs(script)[6] == "42"
    turns = len(SUMS) + 3
    counted = response["usage"]
    assert counted["input_tokens"] == turns * USAGE["prompt_tokens"]
    assert counted["output_tokens"] == turns * USAGE["completion_tokens"]
    assert counted["total_tokens"] == turns * USAGE["total_tokens"]
    with scope.team(api.caller.team.pk):
        lines = UsageRecord.objects.filter(object_id=response["id"])
        spent = [line.input_tokens for line in lines if line.endpoint == "responses"]
        assert spent == [USAGE["prompt_tokens"]] * turns
        assert lines.filter(endpoint="web_search").count() == 1


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_a_chain_of_tool_calls_has_the_same_result_in_all_three_modes(
    reaching: Api, script: Script, worker: WorkerProcess
) -> None:
    with search_server() as found, mcp_server() as box, mcp_server() as crate:
        with scope.every_team():
            SearchEngine.objects.create(name=script.model, base_url=found.url).teams.add(reaching.caller.team)
        plain = reaching.create(**body(script_tool_chain(script), box, crate))
        check(reaching, script, plain)
        script.received.clear()
        events = reaching.events(**body(script_tool_chain(script), box, crate))
        check(reaching, script, events[-1]["response"])
        script.received.clear()
        queued = reaching.create(**body(script_tool_chain(script), box, crate), background=True)
        assert ended(reaching, queued["id"], seconds=60)["status"] == "completed"
        asked = "&".join(f"include[]={name}" for name in SHOWN)
        later = ok(reaching.get(f"/responses/{queued['id']}?{asked}"))
        check(reaching, script, later)
        assert (box.lists, crate.lists) == (3, 3)
        assert (box.names(), crate.names()) == (["add"] * 9, ["add"] * 6)
    assert comparable(events[-1]["response"]) == comparable(plain)
    assert comparable(later) == comparable(plain)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
