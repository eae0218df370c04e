"""Checks of the chaos benchmark: defective event logs and wrong model inputs."""

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.chaos.evaluation import Stored, log_faults
from benchmarks.chaos.mock_servers import MockServers, read_by

EVENT_TYPES = ("created", "queued", "in_progress", "output_item.added", "output_item.done", "completed")
Batch = tuple[int, int, bytes]


def batch(first: int, *types: str) -> Batch:
    """Return a row of the log with events of these types."""
    events = [_event(number, kind) for number, kind in enumerate(types, first)]
    frames = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return first, first + len(types) - 1, frames.encode()


def _event(number: int, kind: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"output_index": 0} if "item" in kind else {"response": {"output": [{}]}}
    return {"type": f"response.{kind}", "sequence_number": number, **fields}


WHOLE = Stored(
    run="run-1-0",
    id="resp_1",
    status="completed",
    error="",
    attempt=1,
    turns=1,
    batches=[batch(0, *EVENT_TYPES[:2]), batch(2, *EVENT_TYPES[2:])],
)


def test_a_complete_log_has_no_defects() -> None:
    assert list(log_faults(WHOLE)) == []


@pytest.mark.parametrize(
    "batches",
    [
        [batch(0, *EVENT_TYPES[:2]), batch(3, *EVENT_TYPES[2:])],
        [batch(0, *EVENT_TYPES[:2]), batch(1, *EVENT_TYPES[2:])],
        [batch(0, *EVENT_TYPES[:2]), batch(2, "queued", *EVENT_TYPES[2:])],
        [batch(0, *EVENT_TYPES[:2]), batch(2, *EVENT_TYPES[2:], "completed")],
        [batch(0, *EVENT_TYPES[:2]), batch(2, *EVENT_TYPES[2:-1])],
        [batch(0, *EVENT_TYPES[:2]), batch(2, *EVENT_TYPES[2:4], "output_item.done", *EVENT_TYPES[4:])],
        [],
    ],
    ids=["gap", "duplicate", "opened twice", "ended twice", "no end", "item closed twice", "nothing"],
)
def test_defects_of_a_log_are_reported(batches: list[Batch]) -> None:
    assert list(log_faults(replace(WHOLE, batches=batches)))


def test_a_model_input_that_was_never_sent_is_reported() -> None:
    mocks = MockServers()
    messages = [{"role": role, "content": words} for role, words in read_by("run-1-0", 2)]
    assert (mocks.place(messages), mocks.wrong) == (("run-1-0", 2), [])
    mocks.place(messages[:-1])
    assert mocks.wrong
