"""Random answers of upstreams with the Responses API that combine all their quirks, with their meaning."""

from collections.abc import Iterator
from random import Random
from typing import Any

import orjson

from tests.support.odd_upstreams import HOSTED, OWN, OddAnswer
from tests.support.responses_upstream import Event, Item, event, response

FAILED = ("failed", "incomplete", "cancelled")


class _Writer:
    """Writer of one random answer. `is_confused`: its events do not match its items; only its last event is correct."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.text = "".join(f"text{number} " for number in range(random.randint(0, 3)))
        self.reasoning = "".join(f"thought{number} " for number in range(random.randint(0, 3)))
        self.calls = [
            (random.choice((HOSTED, OWN)), orjson.dumps({"n": number, "s": "}{ \\ü"[: random.randint(0, 5)]}).decode())
            for number in range(random.choice((0, 0, 1, 1, 2, 3)))
        ]
        if not self.text and not self.calls:
            self.text = "text "
        self.is_raw = random.random() < 0.5
        self.is_confused = random.random() < 0.3
        self.numbering = random.choice(("position", "position", "one", "far", "none", "absent"))
        self.has_ids = random.random() < 0.7 or self.numbering != "position"

    def cut(self, text: str) -> list[str]:
        """Return the text in random pieces."""
        places = sorted(self.random.randint(0, len(text)) for _ in range(self.random.randint(0, 3)))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if a < b]

    def items(self) -> list[Item]:
        """Return the finished items."""
        items: list[Item] = []
        if self.reasoning:
            part = {"type": "reasoning_text" if self.is_raw else "summary_text", "text": self.reasoning}
            parts: Item = {"summary": [], "content": [part]} if self.is_raw else {"summary": [part]}
            items.append({"type": "reasoning", **parts})
        if self.text:
            extras: list[Item] = [{}, {"annotations": []}, {"logprobs": None, "annotations": None}]
            said: Item = {"type": "output_text", "text": self.text, **self.random.choice(extras)}
            items.append({"type": "message", "role": "assistant", "content": [said]})
        for place, (name, arguments) in enumerate(self.calls):
            items.append({"type": "function_call", "call_id": f"call_{place}", "name": name, "arguments": arguments})
        for number, item in enumerate(items):
            item["id"] = f"item_{number}"
            item["status"] = self.random.choice(["completed", "completed", None])
        return items

    def place(self, number: int, item: Item) -> dict[str, Any]:
        """Return the fields of an event that identify its item."""
        named = {"item_id": item["id"]} if self.has_ids else {}
        if self.numbering == "absent":
            return named
        numbered = {"position": number, "one": 0, "far": 7 * number + 3, "none": None}[self.numbering]
        return {"output_index": numbered, **named}

    def in_item(self, number: int, item: Item, **part: int) -> dict[str, Any]:
        """Return the fields of an event that identify its part."""
        return {**self.place(number, item), **({} if self.numbering == "absent" else part)}

    def deltas(self, number: int, item: Item) -> Iterator[Event]:
        place = self.place(number, item)
        match item["type"]:
            case "reasoning" if self.is_raw:
                name = self.random.choice(("reasoning_text", "reasoning"))
                place = self.in_item(number, item, content_index=0)
                yield from self.parts(f"{name}.delta", place, item["content"][0])
            case "reasoning":
                place = self.in_item(number, item, summary_index=0)
                yield from self.parts("reasoning_summary_text.delta", place, item["summary"][0])
            case "message":
                place = self.in_item(number, item, content_index=0)
                yield from self.parts("output_text.delta", place, item["content"][0])
            case _:
                for piece in self.cut(item["arguments"]):
                    yield event("function_call_arguments.delta", **place, delta=piece)

    def parts(self, kind: str, place: dict[str, Any], part: Item) -> Iterator[Event]:
        if self.random.random() < 0.6:
            name = "reasoning_summary_part.added" if part["type"] == "summary_text" else "content_part.added"
            yield event(name, **place, part={**part, "text": ""})
        for piece in self.cut(part["text"]):
            yield event(kind, **place, delta=piece)

    def streamed(self, number: int, item: Item) -> list[Event]:
        """Return the events of an item, which a converter can always assign to it."""
        numbered = {} if self.numbering == "absent" else {"output_index": self.place(number, item)["output_index"]}
        opening = {**item, "status": "in_progress"}
        for name in {"content", "summary", "arguments"} & set(item):
            opening[name] = "" if name == "arguments" else []
        final = event("output_item.done", **numbered, item=item)
        way = self.random.choice(("all", "all", "whole", "no end"))
        added = event("output_item.added", **numbered, item=opening)
        if way == "whole":
            return [added, final] if self.random.random() < 0.5 else [final]
        # Without its end, an item under the index of another item is ambiguous.
        has_end = way == "all" or self.numbering in {"one", "none"}
        if way == "all" and item["type"] == "message" and self.random.random() < 0.2:
            final["item"] = {**item, "content": [{**item["content"][0], "text": ""}]}
        return [added, *self.deltas(number, item), *([final] if has_end else [])]

    def confused(self, events: list[Event], items: list[Item]) -> list[Event]:
        """Return events of which some belong to no item or to the wrong item."""
        strays: dict[str, Event] = {
            "reasoning": event("reasoning_summary_text.delta", summary_index=0, delta="stray "),
            "message": event("output_text.delta", content_index=self.random.randint(0, 2), delta="stray "),
            "function_call": event("function_call_arguments.delta", delta='{"stray": 1}'),
        }
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(list(strays))
            others = [number for number, item in enumerate(items) if item["type"] != kind]
            index = self.random.choice([99, *(others if self.numbering == "position" else ())])
            events.insert(
                self.random.randint(0, len(events)), {**strays[kind], "output_index": index, "item_id": "lost"}
            )
        return events

    def events(self, items: list[Item]) -> list[Event]:
        groups = [self.streamed(number, item) for number, item in enumerate(items)]
        if self.numbering == "position" and self.random.random() < 0.3:
            events = list(_mixed(groups, self.random))
        else:
            events = [piece for group in groups for piece in group]
        if self.is_confused:
            events = self.confused(events, items)
        extras: list[Event] = [
            event("created", response=response("in_progress")),
            event("queued"),
            event("mystery", output_index=0),
            {"type": "keepalive", "sequence_number": 1},
        ]
        for extra in extras:
            if self.random.random() < 0.5:
                events.insert(self.random.randint(0, len(events)), extra)
        return events


def _mixed(groups: list[list[Event]], random: Random) -> Iterator[Event]:
    yield from (group[0] for group in groups)
    waiting = [group[1:] for group in groups]
    while waiting := [group for group in waiting if group]:
        yield random.choice(waiting).pop(0)


def odd_response(random: Random) -> OddAnswer:
    """Return a random answer."""
    writer = _Writer(random)
    expected: dict[str, Any] = {"text": writer.text, "reasoning": writer.reasoning, "calls": writer.calls}
    items, is_cut = writer.items(), random.random() < 0.4
    usage: dict[str, Any] = random.choice([{}, {"usage": None}, {"usage": {"total_tokens": "12"}}])
    if random.random() < 0.2:
        status = random.choice(FAILED) if is_cut else "completed"
        document = response(status, *items, **usage)
        return OddAnswer(
            pieces=[document], api="responses", is_document=True, is_cut=is_cut, has_done=False, **expected
        )
    pieces = writer.events(items)
    if is_cut:
        pieces = pieces[: random.randint(0, len(pieces))]
        pieces += _failure(random)
    else:
        # If the events match no items, only the output in the last event shows the meaning.
        is_whole = writer.is_confused or random.random() < 0.6
        output = items if is_whole else random.choice((list[Item](), None))
        pieces.append(event("completed", response=response(**usage) | {"output": output}))
    return OddAnswer(pieces=pieces, api="responses", is_cut=is_cut, has_done=random.random() < 0.3, **expected)


def _failure(random: Random) -> list[Event]:
    """Return the last events of a truncated answer."""
    reason = {"reason": random.choice(("max_output_tokens", "content_filter", None))}
    endings: list[list[Event]] = [
        [],
        [event("failed", response=response("failed", error={"code": "server_error", "message": "gone"}))],
        [event("incomplete", response=response("incomplete", incomplete_details=reason))],
        [event("completed", response=response("incomplete", incomplete_details=reason))],
        [event("completed", response=response("completed", incomplete_details={"reason": "max_output_tokens"}))],
        [event("completed", response=response("completed", error={"code": "server_error", "message": "gone"}))],
        [event("cancelled", response=response("cancelled"))],
        [{"type": "error", "message": "gone", "code": "server_error"}],
        [{"type": "error", "error": {"message": "gone"}}],
    ]
    return random.choice(endings)
