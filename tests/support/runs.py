"""Runs of the engine without server or database, with their events as a client receives them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import orjson

from core.clock import now
from core.ids import new_id
from engine.calls.toolbox import HostedTool, Toolbox
from engine.events.fold import read_frames
from engine.events.response_body import opening
from engine.events.types import Event, frame
from engine.loop import Run
from engine.state import RunContext, RunState
from engine.steps import RunEnded, Step
from engine.turn import LanguageModel
from responses.requests.parameters import build_sampling, hidden_options, input_items, public_parameters
from responses.schema import parse_create
from tests.support.scripted import HostedTools, Piece, ScriptedModel, toolbox

_ID = re.compile(r"\b([a-z]+)_[0-9a-v]{28}\b")


@dataclass(frozen=True, kw_only=True)
class Played:
    """A finished run with its steps and events."""

    steps: list[Step]
    events: list[dict[str, Any]]

    @property
    def end(self) -> RunEnded:
        """The last step of the run."""
        return cast("RunEnded", self.steps[-1])

    @property
    def output(self) -> list[dict[str, Any]]:
        """The output of the final response."""
        return cast("list[dict[str, Any]]", self.end.response["output"])

    @property
    def types(self) -> list[str]:
        """Event types without the prefix `response.`."""
        return [event["type"].removeprefix("response.") for event in self.events]


def context(*, at: datetime | None = None, **request: Any) -> RunContext:
    """Return the context of a request with these parameters, made at this time or now."""
    body = parse_create({"model": "scripted", "input": "Hi", **request})
    parameters = public_parameters(body, response_id=new_id("resp", at=at), created_at=at or now())
    return RunContext(
        parameters=parameters,
        model=body.model,
        instructions=body.instructions,
        items=input_items(body),
        sampling=build_sampling(parameters, hidden_options(body), input_items(body)),
    )


def begin(
    model: LanguageModel,
    hosted: HostedTool | Toolbox | None = None,
    /,
    *,
    state: RunState | None = None,
    given: RunContext | None = None,
    **request: Any,
) -> Run:
    """Return a run that has not started, of a context or of a request with these parameters."""
    return Run(given or context(**request), state or RunState(), model=model, tools=toolbox(hosted), now=now)


async def play(*turns: Sequence[Piece], hosted: HostedTools | None = None, **request: Any) -> Played:
    """Run a response with these turns of the model. The whole script must be used."""
    model, given = ScriptedModel(*turns), context(**request)
    run = Run(given, RunState(), model=model, tools=toolbox(hosted), now=now)
    steps = [step async for step in run.steps()]
    model.verify()
    if hosted is not None:
        hosted.verify()
    return Played(steps=steps, events=on_the_wire([*opening(given.parameters), *events_of(steps)]))


def events_of(steps: Sequence[Step]) -> list[Event]:
    """Return the events of the steps in order."""
    return [event for step in steps for event in step.events]


def on_the_wire(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the events as a client parses them, numbered from 0."""
    frames = b"".join(frame(event, number) for number, event in enumerate(events))
    return [event for _, event in read_frames(frames)]


def without_ids(value: Any) -> Any:
    """Replace generated ids in JSON by their prefix and order of appearance, such as `msg 1`."""
    seen: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        kind = match[1]
        return seen.setdefault(match[0], f"{kind} {sum(known.startswith(kind + '_') for known in seen) + 1}")

    return orjson.loads(_ID.sub(name, orjson.dumps(value).decode()))
