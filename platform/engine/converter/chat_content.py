"""Text, reasoning and refusals in the `content` of chat completions, and reasoning in fields of its own.

Content is text, a list of parts of various types, or a JSON document if the server has parsed the model's answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from engine.events.types import Body

_REASONING_PARTS = {"thinking", "reasoning", "reasoning_text", "reasoning_content", "summary_text", "thought"}
_TEXT_PARTS = {"text", "output_text", "input_text"}
# Parts without text of the answer: encrypted reasoning, Mistral's references to sources, and media.
_OTHER_PARTS = {
    "redacted_thinking",
    "refusal",
    "reference",
    "image_url",
    "image",
    "input_audio",
    "audio",
    "file",
    "document_url",
    "tool_use",
}
_PARTS = _REASONING_PARTS | _TEXT_PARTS | _OTHER_PARTS
# Fields of objects that may contain the text of reasoning, the most specific name first.
_TEXT_FIELDS = ("text", "thinking", "reasoning", "reasoning_content", "content", "summary", "thought", "value")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Piece of a message's content. `details` are entries that the upstream wants back unchanged."""

    kind: Literal["text", "reasoning", "refusal"]
    text: str
    details: tuple[Body, ...] = ()


def read_content(content: Any) -> Iterator[ContentPiece]:
    """Yield the pieces of `content`, in order."""
    if isinstance(content, str):
        yield ContentPiece("text", content)
    elif isinstance(content, dict) and _is_part(content):
        yield from _read_part(content)
    elif isinstance(content, list) and any(isinstance(part, str) or _is_part(part) for part in content):
        for part in content:
            yield from _read_part(part)
    elif content not in (None, [], {}):
        # The server has parsed an answer that is JSON.
        yield ContentPiece("text", orjson.dumps(content).decode())


def _is_part(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    # `{"text": …}` is a part of some servers, and may also be a document that the model wrote.
    return kind in _PARTS if isinstance(kind, str) else kind is None and part.keys() == {"text"}


def _read_part(part: Any) -> Iterator[ContentPiece]:
    if isinstance(part, str):
        yield ContentPiece("text", part)
        return
    if not isinstance(part, dict):
        return
    kind = part.get("type")
    if kind in _REASONING_PARTS:
        text, has_details = reasoning_text(part), bool(part.get("signature") or part.get("data"))
        if text or has_details:
            yield ContentPiece("reasoning", text, (part,) if has_details else ())
    elif kind == "redacted_thinking":
        yield ContentPiece("reasoning", "", (part,))
    elif kind == "refusal":
        yield ContentPiece("refusal", _plain(part.get("refusal")))
    elif kind not in _OTHER_PARTS:
        yield ContentPiece("text", _plain(part.get("text")))


def _plain(text: object) -> str:
    # Some servers write `{"text": {"value": …}}`, as OpenAI's Assistants API did.
    if isinstance(text, dict):
        text = text.get("value")
    return text if isinstance(text, str) else ""


def reasoning_text(reasoning: Any, *, depth: int = 0) -> str:
    """Return the text of reasoning: a string, an object with the text under any of several names, or a list of them."""
    if isinstance(reasoning, str):
        return reasoning
    if depth == _MAX_DEPTH:
        return ""
    if isinstance(reasoning, list):
        return "".join(reasoning_text(part, depth=depth + 1) for part in reasoning)
    if isinstance(reasoning, dict):
        texts = (reasoning_text(reasoning.get(name), depth=depth + 1) for name in _TEXT_FIELDS)
        return next(filter(None, texts), "")
    return ""
