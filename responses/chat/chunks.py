"""What the client of a streamed chat completion sees of its upstream's chunks."""

from secrets import token_hex
from typing import Any

import orjson

from responses.engine.chat.converter import Chunk

_ROUND = 64


def frame(body: Chunk) -> bytes:
    """A server-sent event without a name, as chat completions have them."""
    return b"data: %b\n\n" % orjson.dumps(body)


class ChunkWriter:
    """Passes chunks on, and holds the usage back to the end of the stream, wherever the upstream says it.

    `own_id` stands in place of the upstream's id. `obfuscates`: each chunk is padded to a multiple of 64 bytes.
    """

    def __init__(self, *, own_id: str | None, wants_usage: bool, obfuscates: bool) -> None:
        self._own_id = own_id
        self._wants_usage = wants_usage
        self._obfuscates = obfuscates
        self._last: Chunk | None = None

    def write(self, chunk: Chunk) -> bytes:
        """The chunk for the client; empty for one that has nothing but the usage."""
        if chunk.get("usage"):
            self._last = {**chunk, "choices": []}
            if not chunk.get("choices"):
                return b""
            # Where usage was asked for, the chunks before the last one say that they have none.
            chunk = {**chunk, "usage": None} if self._wants_usage else _without(chunk, "usage")
        return self._event(chunk)

    def end(self) -> bytes:
        """The chunk with the usage, if the client wants it and the upstream has said it."""
        return self._event(self._last) if self._wants_usage and self._last is not None else b""

    def _event(self, chunk: Chunk) -> bytes:
        if "obfuscation" in chunk:
            # The upstream's padding fits the upstream's bytes.
            chunk = _without(chunk, "obfuscation")
        if self._own_id is not None:
            chunk = {**chunk, "id": self._own_id}
        if not self._obfuscates:
            return frame(chunk)
        body = orjson.dumps({**chunk, "obfuscation": ""})
        return frame({**chunk, "obfuscation": token_hex(_ROUND)[: _ROUND - len(body) % _ROUND]})


def _without(chunk: Chunk, name: str) -> Chunk:
    return {key: value for key, value in chunk.items() if key != name}


def as_chunk(completion: Chunk) -> Chunk:
    """The completion of an upstream that does not stream, as the one chunk of a stream."""
    choices = [
        {
            "index": choice.get("index", 0),
            "delta": _delta(choice.get("message")),
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice.get("finish_reason"),
        }
        for choice in completion.get("choices") or []
    ]
    return {**completion, "object": "chat.completion.chunk", "choices": choices}


def _delta(message: Any) -> Any:
    """A message as a delta, whose calls are numbered."""
    if not isinstance(message, dict) or not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]}
