"""Runs with searches and programs are interrupted after every step and resumed: nothing is lost or runs twice."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import orjson
import pytest

from containers import services
from containers.models import DATA
from containers.services import ContainerSpec
from core.db.db_threads import in_db_thread
from engine.calls.toolbox import Toolbox
from engine.loop import Run
from engine.steps import RunEnded
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response
from responses.runs.recorder import Recorder
from responses.runs.runner import AssembledRun
from tenants import scope
from tests.support.api import Caller
from tests.support.chunks import Chunk, calls, text
from tests.support.sandboxes import Sandbox
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import Begun, abegin, body_of, everything_written
from tools.code_interpreter.execution import CodeInterpreter
from tools.code_interpreter.run_container import run_containers
from tools.code_interpreter.shell import HostedShell
from tools.file_search.execution import FileSearchTool

Json = dict[str, Any]
Turns = Sequence[list[Chunk]]
SEARCHES: Turns = (
    calls(file_search='{"queries":["herons"]}'),
    calls(file_search='{"queries":["oaks"]}'),
    text("Done."),
)


class FakePassages:
    """A store of passages that are found by their text; `asked` records the queries."""

    description = ""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def search(self, queries: Sequence[str]) -> list[Json]:
        """Return one passage."""
        self.asked += queries
        result = {"file_id": "file-1", "filename": "a.txt", "score": 1.0, "attributes": {}}
        return [{**result, "text": f"All about {query}."} for query in queries]


async def interrupt_and_resume(begun: Begun, turns: Turns, tools: Callable[[], Toolbox], cut: int) -> bool:
    """Execute this many steps in one process and the rest in another. Return whether any were left."""
    run = begun.run(ScriptedModel(*turns), tools())
    if await run_steps(begun, run, begun.recorder, cut):
        return False

    def load() -> AssembledRun:
        with scope.team(begun.who.team_id):
            done = Response.objects.get(pk=begun.who.response_id).turns
            model = ScriptedModel(*turns[done:])
            return resume.load(response_id=begun.who.response_id).build(RunFactory(model=model), tools())

    resumed = await in_db_thread(load)
    assert await run_steps(begun, resumed.run, resumed.recorder, 1000)
    return True


async def run_steps(begun: Begun, run: Run, recorder: Recorder, steps: int) -> bool:
    """Execute this many steps. Return whether the run has ended."""
    ended = False
    async with aclosing(run.steps()) as made:
        while steps and not ended:
            step = await anext(made)
            await recorder.record(step)
            ended, steps = isinstance(step, RunEnded), steps - 1
    recorder.log.take_batch()  # a real crash would lose the buffer
    await everything_written(begun)
    return ended


def complete_items(body: Json, kind: str) -> list[Json]:
    """Return the items of this type that are complete."""
    return [item for item in body["output"] if item["type"] == kind and item["status"] == "completed"]


@pytest.mark.slow
async def test_searches_are_reported_once_wherever_the_run_stopped(database: None, caller: Caller) -> None:
    for cut in itertools.count():
        drawer = FakePassages()
        begun = await abegin(caller, input="Go.", tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}])
        tools = partial(Toolbox, [FileSearchTool(drawer)])
        if not await interrupt_and_resume(begun, SEARCHES, tools, cut):
            break
        body = await in_db_thread(partial(body_of, begun))
        assert body["status"] == "completed"
        assert [item["queries"] for item in complete_items(body, "file_search_call")] == [["herons"], ["oaks"]]
        # An interrupted search may be repeated, but not one whose result is stored.
        assert len(drawer.asked) <= 3
        assert [*dict.fromkeys(drawer.asked)] == ["herons", "oaks"]
    assert cut > 8


@pytest.mark.slow
async def test_no_program_runs_twice_wherever_the_run_stopped(database: None, caller: Caller, sandbox: Sandbox) -> None:
    program = orjson.dumps({"code": "open('log', 'a').write('c')"}).decode()
    commands = orjson.dumps({"commands": ["printf s >> log"]}).decode()
    turns = (calls(code_interpreter=program), calls(shell=commands), text("Done."))
    outcomes = set()
    for cut in itertools.count():
        container = await services.create_container(team_id=caller.team.pk, key_id=None, spec=ContainerSpec(name="log"))
        shown: list[Json] = [
            {"type": "code_interpreter", "container": container.pk},
            {"type": "shell", "environment": {"type": "container_reference", "container_id": container.pk}},
        ]
        begun = await abegin(caller, input="Go.", tools=shown)
        tools = partial(code_tools, shown, caller.team.pk)
        if not await interrupt_and_resume(begun, turns, tools, cut):
            break
        status = (await in_db_thread(partial(body_of, begun)))["status"]
        outcomes.add(status)
        written = (
            await sandbox.client.read(container.pk, f"{DATA}/log") if await sandbox.client.files(container.pk) else b""
        )
        assert b"cs".startswith(written)
        assert status == "failed" or written == b"cs"
        await sandbox.client.delete(container.pk)
    assert outcomes == {"completed", "failed"}


def code_tools(shown: Sequence[Json], team_id: str) -> Toolbox:
    """Return the code interpreter and the shell, as a run has them."""
    (_, cells), (_, commands) = run_containers(shown, team_id=team_id, key_id=None)
    return Toolbox([CodeInterpreter(cells, kind="code_interpreter"), HostedShell(commands)])
