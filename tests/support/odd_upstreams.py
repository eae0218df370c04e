"""Random answers of chat-completions upstreams that combine all their quirks, with their meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import orjson

from tests.support.chunks import Chunk, chunk, usage

COMPLETE = ("stop", "eos", "end_turn", "STOP", "mystery", "", None)
FAILED = ("error", "abort", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "SAFETY", "MAX_TOKENS", "length")
HOSTED, OWN = "look", "tell"


@dataclass(kw_only=True)
class OddAnswer:
    """An answer. `pieces` is the chunks or events of a stream, or one document if `is_document`.

    The expected content is that of a complete answer; if `is_cut`, a beginning of it was sent.
    """

    pieces: list[Chunk]
    api: Literal["chat", "responses"] = "chat"
    is_document: bool = False
    is_cut: bool = False
    has_done: bool = True
    tags: bool = False
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


class _Writer:
    """Writer of one random answer."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.tags = random.random() < 0.2
        self.text = "".join(f"text{number} " for number in range(random.randint(0, 3)))
        self.reasoning = "".join(f"thought{number} " for number in range(random.randint(0, 3)))
        self.calls = [
            (random.choice((HOSTED, OWN)), orjson.dumps({"n": number, "s": "}{ \\ü"[: random.randint(0, 5)]}).decode())
            for number in range(random.choice((0, 0, 1, 1, 2, 3)))
        ]
        if not self.text and not self.calls:
            self.text = "text "

    def cut(self, text: str) -> list[str]:
        """Return the text in random pieces."""
        places = sorted(self.random.randint(0, len(text)) for _ in range(self.random.randint(0, 3)))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if a < b]

    def reasoning_delta(self, text: str) -> dict[str, Any]:
        part = {"type": "thinking", "thinking": text}
        forms: list[dict[str, Any]] = [
            {"reasoning_content": text},
            {"reasoning": text, "reasoning_content": None},
            {"reasoning": {"content": text}},
            {"reasoning_content": [{"type": "text", "text": text}]},
            {"thinking": text},
            {"content": [part]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]},
            {"content": [{"type": "reasoning", "text": text}], "role": "assistant"},
            {"reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0}]},
            {"reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0}]},
        ]
        return self.random.choice(forms)

    def text_delta(self, text: str) -> dict[str, Any]:
        part = {"type": "text", "text": text}
        empty: list[dict[str, Any]] = [{}, {"tool_calls": [{}]}, {"tool_calls": []}, {"function_call": {}}]
        content = self.random.choice([text, text, text, [part], [text], [{"text": {"value": text}, "type": "text"}]])
        return {"content": content, **self.random.choice(empty), **self.random.choice([{}, {"role": "assistant"}])}

    def thoughts(self) -> Iterator[dict[str, Any]]:
        if self.reasoning and self.tags:
            begin, end = self.random.choice([("<think>", "</think>"), ("", "</think>"), ("[THINK]", "[/THINK]")])
            yield from ({"content": piece} for piece in self.cut(begin + self.reasoning + end))
        else:
            yield from map(self.reasoning_delta, self.cut(self.reasoning))

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the pieces of the calls, in one way of joining them."""
        way = self.random.choice(("index", "id", "pieces", "repeated", "growing", "whole", "new ids", "mixed"))
        number = 0
        waiting: list[list[dict[str, Any]]] = []
        for place, (name, arguments) in enumerate(self.calls):
            upstream_id = f"call_{place}"
            opening = {"index": place, "id": upstream_id, "type": "function"}
            pieces = self.cut(arguments)
            made: list[dict[str, Any]] = []
            for part, piece in enumerate(pieces):
                head: dict[str, Any] = dict(opening) if part == 0 else {"index": place}
                function: dict[str, Any] = {"name": name, "arguments": piece} if part == 0 else {"arguments": piece}
                if way == "id":
                    head = {"id": upstream_id}
                elif way == "pieces":
                    head = {"index": number, "id": upstream_id}
                elif way == "new ids":
                    head = {"index": place, "id": f"{upstream_id}_{part}"}
                elif way == "growing":
                    head, function = opening, {"name": name, "arguments": "".join(pieces[: part + 1])}
                number += 1
                made.append({**head, "function": function})
            if way == "whole":
                made = [{**opening, "function": {"name": name, "arguments": orjson.loads(arguments)}}]
            if way == "repeated":
                made.append({**opening, "function": {"name": name, "arguments": arguments}})
            waiting.append(made)
        if way == "mixed":
            yield from [made.pop(0) for made in waiting]
            while waiting := [made for made in waiting if made]:
                yield self.random.choice(waiting).pop(0)
        yield from (entry for made in waiting for entry in made)

    def deltas(self) -> list[dict[str, Any]]:
        calls = [{"tool_calls": [entry]} for entry in self.entries()]
        return [*self.thoughts(), *map(self.text_delta, self.cut(self.text)), *calls]

    def document(self) -> Chunk:
        tagged = self.tags and self.reasoning
        content: Any = f"<think>{self.reasoning}</think>{self.text}" if tagged else self.text
        message: dict[str, Any] = {"role": "assistant", "content": content or None}
        if self.reasoning and not self.tags:
            message |= self.reasoning_delta(self.reasoning)
            if isinstance(message["content"], list):
                message["content"] = [*message["content"], {"type": "text", "text": self.text}]
            else:
                message["content"] = self.text
        if self.calls:
            message["tool_calls"] = [
                {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for place, (name, arguments) in enumerate(self.calls)
            ]
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def odd_answer(random: Random) -> OddAnswer:
    """Return a random answer."""
    writer = _Writer(random)
    expected: dict[str, Any] = {"text": writer.text, "reasoning": writer.reasoning, "calls": writer.calls}
    expected["tags"] = writer.tags
    is_cut = random.random() < 0.4
    if random.random() < 0.25:
        document = writer.document()
        document["choices"][0] |= _failure(random) if is_cut else {"finish_reason": random.choice(COMPLETE)}
        return OddAnswer(pieces=[document], is_document=True, is_cut=is_cut, **expected)
    pieces, end = [chunk(**delta) for delta in writer.deltas()], chunk(finish=random.choice(COMPLETE))
    has_done = True
    if is_cut:
        pieces = pieces[: random.randint(0, len(pieces))]
        has_done = random.random() < 0.7
        end["choices"][0] |= _failure(random) if has_done else {"finish_reason": None}
    pieces = _numbered([*pieces, end], random)
    extras: list[Chunk] = [usage(), {"choices": []}, {"choices": None, "service_tier": "default"}]
    for extra in extras:
        if random.random() < 0.5:
            pieces.insert(random.randint(0, len(pieces)), extra)
    return OddAnswer(pieces=pieces, is_cut=is_cut, has_done=has_done, **expected)


def _failure(random: Random) -> dict[str, Any]:
    if random.random() < 0.2:
        return {"finish_reason": "stop", "error": {"code": 502, "message": "gone"}}
    return {"finish_reason": random.choice(FAILED)}


def _numbered(pieces: Sequence[Chunk], random: Random) -> list[Chunk]:
    way = random.choice(("zero", "zero", "one", "counted", "missing"))
    for number, piece in enumerate(pieces):
        choice = piece["choices"][0]
        choice["index"] = {"zero": 0, "one": 1, "counted": number, "missing": None}[way]
    return list(pieces)
