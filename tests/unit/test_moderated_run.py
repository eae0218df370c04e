"""Moderated runs with hosted tools: a flagged turn is withheld, earlier output is kept."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import plain_text
from core.clock import now
from engine.events.response_body import opening
from engine.events.tools import McpCallInProgress
from engine.events.types import Body
from engine.loop import Run
from engine.moderation import ModerationGate, ModerationResult
from engine.state import RunState
from engine.steps import Emitted, RunSuspended
from responses.moderation.parameter import ModerationCheck
from responses.runs.identity import RequestInfo
from responses.schema.options import ModerationMode, ModerationParam, ModerationPolicy
from tenants.principal import Principal
from tests.support.chunks import Chunk, calls, chunk, text
from tests.support.runs import Played, context, events_of, on_the_wire
from tests.support.scripted import Piece, ScriptedModel, ScriptedTools, toolbox
from tests.support.streams import assert_well_formed

PRINCIPAL = Principal(
    team_id="team_1",
    key_id="key_1",
    scopes=frozenset(),
    allowed_models=None,
    tools=frozenset(),
    expires_at=None,
    grace_seconds=None,
)
BLOCKING = ModerationParam(model="judge", policy=ModerationPolicy(output=ModerationMode(mode="block")))
SEARCH = calls(search='{"q": "x"}')


class FightModeration(ModerationCheck):
    """Moderation that flags every answer about a fight, without an upstream."""

    @override
    async def check_output(self, bodies: Sequence[Body]) -> ModerationResult:
        flagged = any("fight" in plain_text(body) for body in bodies)
        return {"type": "moderation_result", "flagged": flagged, "categories": {}}


def blocking_checks() -> FightModeration:
    """Return blocking moderation of the output, after input that was not flagged."""
    found: ModerationResult = {"type": "moderation_result", "flagged": False, "categories": {}}
    request = RequestInfo(request_id="req_1")
    return FightModeration(principal=PRINCIPAL, policy=BLOCKING, request=request, input_result=found)


async def play(*turns: Sequence[Piece], tools: ScriptedTools) -> Played:
    """Play a run with blocking moderation; assert that its events are in order."""
    checks = blocking_checks()
    model, given = ScriptedModel(*turns), context()
    run = Run(given, RunState(), model=model, tools=toolbox(tools), now=now, checks=checks)
    steps = [step async for step in run.steps()]
    model.verify()
    tools.verify()
    events = on_the_wire([*opening(given.parameters), *events_of(steps)])
    assert_well_formed(events)
    return Played(steps=steps, events=events)


def with_text(words: str, turn: Sequence[Chunk]) -> list[Chunk]:
    """Return a turn with text before its calls."""
    return [turn[0], chunk(content=words), *turn[1:]]


async def test_text_next_to_a_call_is_moderated_before_the_call_runs() -> None:
    run = await play(with_text("I will fight.", SEARCH), tools=ScriptedTools(search=[]))
    assert run.types == ["created", "in_progress", "error", "failed"]
    assert (run.end.ending.status, run.output) == ("failed", [])
    assert run.end.usage.output_tokens > 0


async def test_output_before_a_flagged_turn_is_kept() -> None:
    run = await play(with_text("Let me look.", SEARCH), text("I will fight."), tools=ScriptedTools(search=["found"]))
    assert [item["type"] for item in run.output] == ["message", "mcp_call"]
    assert "fight" not in str(run.events)
    assert run.end.response["moderation"]["output"]["flagged"] is True


async def test_accepted_turns_are_sent_one_by_one() -> None:
    run = await play(with_text("Let me look.", SEARCH), text("Found."), tools=ScriptedTools(search=["found"]))
    assert [item["type"] for item in run.output] == ["message", "mcp_call", "message"]
    assert run.end.response["moderation"]["output"]["flagged"] is False
    assert run.types[-1] == "completed"


async def test_events_that_are_held_back_are_sent_when_the_run_is_suspended() -> None:
    state = RunState()
    run = Run(context(), state, model=ScriptedModel(), tools=toolbox(None), now=now)
    gate = ModerationGate(blocking_checks(), state, end=run._end, now=now)
    progress = McpCallInProgress(output_index=0, item_id="mcp_1")
    assert await gate.check(Emitted([progress])) is None
    suspended = await gate.check(RunSuspended())
    assert suspended is not None
    assert suspended.events == [progress]
