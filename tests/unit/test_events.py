"""Serialization of events as server-sent events."""

import dataclasses
from typing import Any, get_args

import orjson
import pytest

from engine.events import types as events
from engine.events.types import (
    ContentPartAdded,
    Event,
    FunctionCallArgumentsDelta,
    OutputTextDelta,
    ReasoningTextDelta,
    RefusalDelta,
    ResponseCompleted,
    frame,
)

PLACE: dict[str, Any] = {"item_id": "msg_1", "output_index": 1, "content_index": 2}
DELTAS = [OutputTextDelta, RefusalDelta, ReasoningTextDelta]


def decoded(event: Event, *, number: int = 7, obfuscate: bool = False) -> dict[str, Any]:
    """Return the data of the event's frame; assert the form of the frame."""
    name, data, *rest = frame(event, number, obfuscate=obfuscate).split(b"\n")
    assert (name, rest) == (b"event: " + event.type.encode(), [b"", b""])
    assert data.startswith(b"data: ")
    parsed: dict[str, Any] = orjson.loads(data[6:])
    return parsed


def every_class() -> list[Any]:
    """Return all classes of the union, flattened."""
    return [kind for member in get_args(Event) for kind in (get_args(member) or (member,))]


def sample(kind: Any) -> Event:
    """Return an event of this class with a value in each field."""
    values: dict[Any, Any] = {int: 1, str: 'a "quoted"\nline', list[dict[str, Any]]: [{"a": 1}]}
    given = {field.name: values.get(field.type, {"id": "x", "type": "y"}) for field in dataclasses.fields(kind)}
    made: Event = kind(**{name: "msg_1" if name == "item_id" else value for name, value in given.items()})
    return made


@pytest.mark.parametrize("kind", every_class(), ids=lambda kind: kind.__name__)
def test_a_frame_is_the_event_with_its_type_and_number_first(kind: Any) -> None:
    event = sample(kind)
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(kind)}
    found = decoded(event)
    assert found == {"type": event.type, "sequence_number": 7, **fields}
    assert list(found)[:2] == ["type", "sequence_number"]


def test_the_template_for_text_deltas_equals_the_generic_serialization() -> None:
    delta = OutputTextDelta(**PLACE, delta='é "\\\n\U0001f600', logprobs=[{"token": "é", "logprob": -0.5}])
    plain = orjson.loads(orjson.dumps(delta))
    assert decoded(delta) == {**plain, "type": delta.type, "sequence_number": 7}


@pytest.mark.parametrize("kind", DELTAS)
@pytest.mark.parametrize("delta", ["", "a", "x" * 15, "x" * 16, "é" * 33])
def test_obfuscated_deltas_are_multiples_of_sixteen_characters(kind: Any, delta: str) -> None:
    found = decoded(kind(**PLACE, delta=delta), obfuscate=True)
    assert found["delta"] == delta
    assert (len(delta) + len(found["obfuscation"])) % 16 == 0
    assert found["obfuscation"]


def test_arguments_are_obfuscated_like_text() -> None:
    delta = FunctionCallArgumentsDelta(item_id="fc_1", output_index=0, delta="{}")
    assert len(decoded(delta, obfuscate=True)["obfuscation"]) == 14


@pytest.mark.parametrize("event", [ResponseCompleted(response={"id": "x"}), ContentPartAdded(**PLACE, part={})])
def test_other_events_are_never_obfuscated(event: Event) -> None:
    assert "obfuscation" not in decoded(event, obfuscate=True)


def test_no_two_classes_have_the_same_type() -> None:
    types = [sample(kind).type for kind in every_class()]
    assert len(set(types)) == len(types)
    assert events.DONE_FRAME == b"data: [DONE]\n\n"
