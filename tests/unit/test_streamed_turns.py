"""Turns that are streamed from the upstream although the client reads no events."""

from dataclasses import replace
from typing import Any

import pytest

from engine import turn_request
from engine.calls.toolbox import HostedTool
from engine.state import RunState
from tests.support.runs import context
from tests.support.scripted import ScriptedTools, toolbox

FUNCTION = {"type": "function", "name": "look", "parameters": None, "strict": None}


def is_streamed(hosted: HostedTool | None = None, *, wants_events: bool = False, **request: Any) -> bool:
    """Return true if the first turn of a request is streamed."""
    given = replace(context(**request), wants_events=wants_events)
    return turn_request.build(given, RunState(), toolbox(hosted)).streamed


@pytest.mark.parametrize("request_", [{}, {"tools": [FUNCTION]}, {"reasoning": {"effort": "low"}}])
def test_a_document_is_enough_for_a_short_answer(request_: dict[str, Any]) -> None:
    assert not is_streamed(**request_)
    assert is_streamed(wants_events=True, **request_)


@pytest.mark.parametrize(
    "request_", [{"stop": ["END"]}, {"reasoning": {"effort": "medium"}}, {"reasoning": {"summary": "auto"}}]
)
def test_an_answer_that_may_end_early_or_late_is_streamed(request_: dict[str, Any]) -> None:
    assert is_streamed(**request_)


def test_turns_with_hosted_tools_are_streamed() -> None:
    assert is_streamed(ScriptedTools(search=[]))
