"""Removal of the code fence that some models write around a structured answer despite the required format."""

from dataclasses import replace
from typing import Any

import orjson
import regex

from engine.constraints.gate import Gate
from engine.converter.segments import MessageSegment
from engine.events.types import Body
from engine.turn import TurnResult

_FENCED = regex.compile(r"\s*```[ \t]*(?:json|JSON)?[ \t]*\r?\n?(.*?)\s*```\s*", regex.DOTALL)


def without_fence(result: TurnResult, gate: Gate | None) -> TurnResult:
    """Return the result without the fence, if its only message is one fence around valid JSON.

    The events that the gate holds are replaced accordingly. Text that was already sent stays as it is.
    """
    messages = [position for position, item in enumerate(result.items) if item["type"] == "message"]
    if gate is None or len(messages) != 1 or messages[0] < gate.shown:
        return result
    position = messages[0]
    message = result.items[position]
    match message["content"]:
        case [{"type": "output_text", "text": str(text)} as part] if (place := _document(text)) is not None:
            segment = _unwrapped(message, part, place)
        case _:
            return result
    gate.replace_item(message["id"], lambda index: [*segment.open_at(index), *segment.close(message["status"])])
    items = [*result.items]
    items[position] = segment.body()
    return replace(result, items=items)


def _document(text: str) -> tuple[int, int] | None:
    """Return the start and end of the JSON document in a fence; None if there is none."""
    found = _FENCED.fullmatch(text)
    if found is None:
        return None
    try:
        orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None
    return found.span(1)


def _unwrapped(message: Body, part: Body, place: tuple[int, int]) -> MessageSegment:
    first, last = place
    segment = MessageSegment(phase=message.get("phase"))
    segment.id = message["id"]
    # Without citations: their positions count from the start of the fence, so they would no longer fit.
    segment.write("output_text", part["text"][first:last], _covered(part["logprobs"], part["text"], first, last))
    return segment


def _covered(logprobs: list[dict[str, Any]], text: str, first: int, last: int) -> list[dict[str, Any]]:
    """Return the entries of the tokens inside the document; none if they do not spell the text."""
    if "".join(entry["token"] for entry in logprobs) != text:
        return []
    covered, begin = [], 0
    for entry in logprobs:
        end = begin + len(entry["token"])
        if first <= begin and end <= last:
            covered.append(entry)
        begin = end
    return covered
