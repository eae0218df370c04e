"""A run with MCP calls is interrupted after every step and resumed: its server gets no extra calls."""

import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from conversations.items import McpApprovalRequest
from core.db.db_threads import in_db_thread
from core.egress import Egress
from core.egress_policy import AllowList
from engine.calls.outcomes import request_digest
from engine.calls.toolbox import Toolbox
from engine.loop import Run
from engine.steps import RunEnded
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Decision, Response
from responses.runs.recorder import Recorder
from responses.runs.runner import AssembledRun
from responses.tools import approvals
from responses.tools.approvals import DecidedApproval
from tenants import scope
from tests.support.api import Caller
from tests.support.chunks import Chunk, chunk, text, usage
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import Begun, abegin, body_of, everything_written
from tools.mcp import request as mcp
from tools.mcp.catalogue import AvailableTool
from tools.mcp.execution import McpTools
from tools.mcp.servers import ApprovalPolicy, ListedTool, RemoteServer
from tools.mcp.sessions import McpSessions

OPEN = Egress(allow=AllowList.parse(["127.0.0.1"]))


@pytest.fixture
def served() -> Iterator[McpServer]:
    """A running server."""
    with mcp_server() as running:
        yield running


def turn_calling(*calls: tuple[str, str]) -> list[Chunk]:
    """Return a turn that calls these functions."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return [
        *(
            chunk(tool_calls=[{"index": i, "id": f"call_{f['name']}_{i}", "function": f}])
            for i, f in enumerate(functions)
        ),
        chunk(finish="tool_calls"),
        usage(),
    ]


TURNS = [
    turn_calling(("box__add", '{"a":1}'), ("box__add", '{"a":2}')),
    turn_calling(("box__add", '{"a":3}')),
    text("Done."),
]


class Execution:
    """All processes that execute one response, one after the other. Each knows only the servers in the row."""

    def __init__(self, begun: Begun, turns: list[list[Chunk]], approved: tuple[DecidedApproval, ...] = ()) -> None:
        self.begun = begun
        self.turns = turns
        self.approved = approved

    async def first(self, steps: int) -> bool:
        """Execute this many steps in the process that created the response. Return whether the run has ended."""
        run = self.begun.run(ScriptedModel(*self.turns), await in_db_thread(self._tools))
        return await self._live(run, self.begun.recorder, steps)

    async def next(self) -> bool:
        """Resume the run in another process."""
        resumed = await in_db_thread(self._load)
        return await self._live(resumed.run, resumed.recorder, 1000)

    def _tools(self) -> McpTools:
        with scope.team(self.begun.who.team_id):
            row = Response.objects.get(pk=self.begun.who.response_id)
        servers = mcp.decrypt_servers(row.secrets, row.parameters["tools"])
        tools = McpTools(servers, McpSessions(OPEN), decided=self.approved)
        # Of concurrent calls, one may be in flight when the run is interrupted at the step of another one.
        tools.concurrency = 1
        return tools

    def _load(self) -> AssembledRun:
        tools = self._tools()
        with scope.team(self.begun.who.team_id):
            done = Response.objects.get(pk=self.begun.who.response_id).turns
            model = ScriptedModel(*self.turns[done:])
            return resume.load(response_id=self.begun.who.response_id).build(RunFactory(model=model), Toolbox([tools]))

    async def _live(self, run: Run, recorder: Recorder, steps: int) -> bool:
        ended = False
        async with aclosing(run.steps()) as made:
            while steps and not ended:
                step = await anext(made)
                await recorder.record(step)
                ended, steps = isinstance(step, RunEnded), steps - 1
        recorder.log.take_batch()  # a real crash would lose the buffer
        await everything_written(self.begun)
        return ended


async def begin(caller: Caller, running: McpServer) -> Begun:
    """Store a response whose row contains the server, as for a background run."""
    begun = await abegin(caller, input="Go.", tools=[tool(running)])
    secrets = mcp.encrypt_servers([RemoteServer(label="box", url=running.url, headers={"X-Key": "secret-in-row"})])

    def keep() -> None:
        with scope.team(begun.who.team_id):
            Response.objects.filter(pk=begun.who.response_id).update(secrets=secrets)

    await in_db_thread(keep)
    return begun


async def executions(caller: Caller, running: McpServer) -> AsyncGenerator[tuple[Execution, int], None]:
    """Yield a response interrupted after each possible step of its run."""
    for cut in itertools.count():
        execution = Execution(await begin(caller, running), TURNS)
        running.calls.clear()
        running.lists = 0
        if await execution.first(cut):
            return
        yield execution, cut


@pytest.mark.slow
async def test_no_tool_is_called_twice_wherever_the_run_stopped(
    database: None, caller: Caller, served: McpServer
) -> None:
    cuts = 0
    async for execution, cut in executions(caller, served):
        assert await execution.next()
        body = await in_db_thread(partial(body_of, execution.begun))
        made = [item for item in body["output"] if item["type"] == "mcp_call" and item["status"] == "completed"]
        assert [item["output"] for item in made] == ["1", "2", "3"]
        assert (cut, sorted(arguments["a"] for _, arguments in served.calls)) == (cut, [1, 2, 3])
        finished = [item for item in body["output"] if item["type"] == "mcp_list_tools" and "error" not in item]
        assert len(finished) == 1
        cuts += 1
    assert cuts > 10


async def test_secrets_are_erased_when_the_run_ends(database: None, caller: Caller, served: McpServer) -> None:
    execution = Execution(await begin(caller, served), TURNS)

    def secrets() -> str:
        with scope.team(caller.team.pk):
            return Response.objects.get(pk=execution.begun.who.response_id).secrets

    await execution.first(3)
    kept = await in_db_thread(secrets)
    assert kept
    assert "secret-in-row" not in kept
    assert await execution.next()
    assert await in_db_thread(secrets) == ""
    assert {headers["x-key"] for headers in served.headers} == {"secret-in-row"}


@pytest.mark.slow
async def test_an_approved_call_is_made_at_most_once(database: None, caller: Caller, served: McpServer) -> None:
    note = ListedTool(name="note", **_described(served, "note"))
    definition = AvailableTool(server=RemoteServer(label="box", url=served.url), tool=note).definition
    request = McpApprovalRequest(id="mcpr_1", server_label="box", name="note", arguments="{}")
    one = DecidedApproval(request=request, request_id="mcpr_1", definition=definition)
    outcomes = set()
    for cut in itertools.count():
        execution = Execution(await begin(caller, served), [text("Done.")], approved=(one,))
        served.calls.clear()
        if await execution.first(cut):
            break
        assert await execution.next()
        status = (await in_db_thread(partial(body_of, execution.begun)))["status"]
        # A call with side effects that may have been made is not repeated.
        assert served.names() == (["note"] if status == "completed" else [])
        outcomes.add(status)
    assert outcomes == {"completed", "failed"}


def _described(running: McpServer, name: str) -> dict[str, Any]:
    found = next(entry for entry in running.tools if entry.name == name)
    hints = found.annotations.model_dump(by_alias=True, exclude_none=True) if found.annotations else None
    return {"description": found.description, "input_schema": found.input_schema, "annotations": hints}


async def test_a_resumed_run_knows_its_approvals(database: None, caller: Caller) -> None:
    begun = await abegin(caller, input="Go.")
    item = McpApprovalRequest(id="mcpr_granted", server_label="box", name="note", arguments="{}")

    def granted() -> list[approvals.DecidedApproval]:
        with scope.team(caller.team.pk):
            Decision.objects.create(
                id="mcpr_granted",
                team=caller.team,
                response_id=begun.who.response_id,
                call_id="call_1",
                request=request_digest(item.wire()),
                definition="d",
                state="granted",
                answered_in=begun.who.response_id,
            )
            return approvals.decided_approvals(begun.who.response_id, [item], output=[])

    found = await in_db_thread(granted)
    assert [(one.request_id, one.request.name, one.definition) for one in found] == [("mcpr_granted", "note", "d")]


def test_the_default_policy_requires_approval_for_every_call() -> None:
    reading = ListedTool(name="t", description=None, input_schema={}, annotations={"readOnlyHint": True})
    assert ApprovalPolicy.parse(None).asks_for(reading)
