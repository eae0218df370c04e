"""A compacting run is interrupted after every single step and resumed from the database."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from core.db.db_threads import in_db_thread
from engine.loop import Run
from engine.steps import RunEnded
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response
from responses.requests import parameters
from responses.requests.encrypted_content import TeamCipher
from responses.runs.event_log import FLUSH_BYTES
from responses.runs.recorder import Recorder
from responses.runs.runner import AssembledRun
from tenants import scope
from tests.support.api import Caller
from tests.support.chunks import Chunk, chunk, text, usage
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import Begun, abegin, body_of, everything_written, log_of
from tests.support.streams import assert_well_formed

LONG = "so it was " * 600
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Find the red car."},
    {"role": "assistant", "content": LONG},
    {"role": "user", "content": "And where is it?"},
]
MANAGED = [{"type": "compaction", "compact_threshold": 1000}]
# The first piece exceeds the recorder's buffer, so that the announced item is in the log when the run is interrupted.
NOTES = [chunk(content="Notes."), chunk(content="x" * FLUSH_BYTES), chunk(finish="stop"), usage(prompt_tokens=5)]
ANSWER = text("In Vienna.")


async def begun(caller: Caller, **request: Any) -> Begun:
    """Store a response that no process has run yet, with its team's cipher."""
    made = await abegin(caller, **request)
    options = parameters.compaction_plan((await in_db_thread(lambda: row_of(made))).options)
    given = replace(made.context, cipher=TeamCipher(caller.team.pk), compaction=options)
    return replace(made, context=given)


def row_of(made: Begun) -> Response:
    with scope.team(made.who.team_id):
        return Response.objects.get(pk=made.who.response_id)


async def record_steps(run: Run, recorder: Recorder, *, steps: int) -> bool:
    """Record this many steps. Return whether the run has ended."""
    async with aclosing(run.steps()) as playing:
        async for step in playing:
            if not steps:
                return False
            await recorder.record(step)
            steps -= 1
            if isinstance(step, RunEnded):
                return True
    return False


def resumed(made: Begun, script: Sequence[Sequence[Chunk]]) -> tuple[AssembledRun, ScriptedModel]:
    """Resume the run in another process, with a model for the remaining turns."""
    with scope.team(made.who.team_id):
        left = ScriptedModel(*script[Response.objects.get(pk=made.who.response_id).turns :])
        return resume.load(response_id=made.who.response_id).build(RunFactory(model=left)), left


async def interrupt_and_resume(
    made: Begun, script: Sequence[Sequence[Chunk]], *, after: int
) -> tuple[dict[str, Any], ScriptedModel]:
    """Interrupt a run after this many steps. Return its response and the model of the process that resumed it."""
    await record_steps(made.run(ScriptedModel(*script)), made.recorder, steps=after)
    made.recorder.log._flush()
    await everything_written(made)
    successor, model = await in_db_thread(lambda: resumed(made, script))
    assert await record_steps(successor.run, successor.recorder, steps=1000)
    await everything_written(made)
    log, body = await in_db_thread(lambda: (log_of(made), body_of(made)))
    assert_well_formed(log)
    assert log[-1]["response"] == body
    return body, model


@pytest.mark.parametrize("after", range(4))
async def test_a_compacting_run_resumes_after_its_last_step(database: None, caller: Caller, after: int) -> None:
    made = await begun(caller, input=TALK, context_management=MANAGED)
    body, model = await interrupt_and_resume(made, [NOTES, ANSWER], after=after)
    shown = [item for item in body["output"] if item.get("status") != "incomplete"]
    assert (body["status"], [item["type"] for item in shown]) == ("completed", ["compaction", "message"])
    assert body["output"][0]["encrypted_content"].startswith("s1.")
    assert body["usage"]["input_tokens"] == 5 + 7
    read = [item.wire()["content"][0]["text"] for item in model.requests[-1].items]
    assert read[:2] == ["Find the red car.", "And where is it?"]
    assert len(read) == 3


@pytest.mark.parametrize("after", range(3))
async def test_a_requested_compaction_is_made_only_once(database: None, caller: Caller, after: int) -> None:
    made = await begun(caller, input=[*TALK, {"type": "compaction_trigger"}])
    body, _ = await interrupt_and_resume(made, [NOTES], after=after)
    assert (body["status"], [item["type"] for item in body["output"]]) == ("completed", ["compaction"])
    assert body["usage"]["input_tokens"] == 5
