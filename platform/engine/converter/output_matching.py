"""Matching of the output of a finished response with the items whose events were already emitted."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.events.types import Body

_CALL_TEXTS = {"function_call": "arguments", "custom_tool_call": "input"}
_REASONING_PARTS = {"reasoning_text", "summary_text", "reasoning", "thinking"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Item whose events were emitted: the type and text of each part. `is_whole`: nothing can be added to it."""

    kind: str
    parts: Sequence[tuple[str, str]]
    is_whole: bool
    call_id: str | None = None


def matched(sent: Sequence[Written], output: Sequence[Body]) -> dict[int, int] | None:
    """Return the position in the output of each item that was sent; None if they contradict each other.

    Reasoning may be missing in the output: the answer is complete without it.
    """
    pairs: dict[int, int] = {}
    for position, written in enumerate(sent):
        candidates = (place for place, item in enumerate(output) if place not in pairs.values())
        found = next((place for place in candidates if _agrees(written, output[place])), None)
        if found is not None:
            pairs[position] = found
        elif written.kind != "reasoning" and (not written.parts or any(text for _, text in written.parts)):
            return None
    return pairs


def _agrees(written: Written, item: Body) -> bool:
    if item.get("type") != written.kind:
        return False
    if written.kind in _CALL_TEXTS:
        texts = [(_CALL_TEXTS[written.kind], str(item.get(_CALL_TEXTS[written.kind]) or ""))]
        if item.get("call_id") != written.call_id:
            return False
    else:
        texts = [(part["type"], str(part.get("text") or part.get("refusal") or "")) for part in _parts(item)]
    if written.kind == "reasoning":
        # Raw reasoning may be hidden.
        shown = {kind for kind, _ in written.parts}
        texts = [(kind, text) for kind, text in texts if kind in shown]
    parts = [(kind, text) for kind, text in written.parts if text]
    if written.is_whole and written.parts:
        return [(kind, text) for kind, text in texts if text] == parts
    if len(written.parts) <= len(texts):
        # If the lists differ, a part was announced under a wrong index.
        parts = list(written.parts)
    if len(parts) > len(texts):
        return False
    return all(
        kind == final_kind and final.startswith(text)
        for (kind, text), (final_kind, final) in zip(parts, texts, strict=False)
    )


def _parts(item: Body) -> Sequence[Body]:
    return [*(item.get("summary") or ()), *(item.get("content") or ())] if item["type"] == "reasoning" else wanted(item)


def wanted(message: Body) -> Sequence[Body]:
    """Return the parts of a message that belong to the answer. Some upstreams also put reasoning into messages."""
    parts = message.get("content") or ()
    own = [part for part in parts if part["type"] not in _REASONING_PARTS]
    return own or parts


def with_parts(item: Body) -> Body:
    """Return an item whose text is in parts. Some servers write a string, or the part types of chat completions."""
    match item.get("type"):
        case "message":
            lists = {"content": "output_text"}
        case "reasoning":
            lists = {"summary": "summary_text", "content": "reasoning_text"}
        case _:
            return item
    changed = {name: _as_parts(item[name], kind) for name, kind in lists.items() if item.get(name)}
    return {**item, **changed} if any(changed[name] is not item[name] for name in changed) else item


def _as_parts(value: object, kind: str) -> object:
    if isinstance(value, str):
        return [{"type": kind, "text": value}]
    if not isinstance(value, list):
        return value
    parts = [{"text": part} if isinstance(part, str) else part for part in value]
    if all(part.get("type") not in {None, "text"} for part in parts):
        return value
    return [{**part, "type": kind} if part.get("type") in {None, "text"} else part for part in parts]
