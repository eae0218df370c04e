"""Conversion of an upstream's chunks into the chunks of a streamed chat completion."""

from secrets import token_hex
from typing import Any

import orjson

from responses.engine.converter.chat import Chunk

_PADDING_BYTES = 64


def frame(body: Chunk) -> bytes:
    """Return a server-sent event without a name, as chat completions use them."""
    return b"data: %b\n\n" % orjson.dumps(body)


class ChunkWriter:
    """Writer of chunks for the client, with the usage in the last chunk, wherever the upstream reports it.

    `own_id` replaces the upstream's id. With `obfuscates` each chunk is padded to a multiple of 64 bytes.
    """

    def __init__(self, *, own_id: str | None, wants_usage: bool, obfuscates: bool) -> None:
        self._own_id = own_id
        self._wants_usage = wants_usage
        self._obfuscates = obfuscates
        self._usage_chunk: Chunk | None = None

    def write(self, chunk: Chunk) -> bytes:
        """Return the event for a chunk; empty for a chunk that contains only the usage."""
        if chunk.get("usage"):
            self._usage_chunk = {**chunk, "choices": []}
            if not chunk.get("choices"):
                return b""
            # As at OpenAI: if usage was requested, the chunks before the last one have `"usage": null`.
            chunk = {**chunk, "usage": None} if self._wants_usage else _without(chunk, "usage")
        return self._event(chunk)

    def end(self) -> bytes:
        """Return the event with the usage, if the client requested it and the upstream reported it."""
        return self._event(self._usage_chunk) if self._wants_usage and self._usage_chunk is not None else b""

    def _event(self, chunk: Chunk) -> bytes:
        if "obfuscation" in chunk:
            # The upstream's padding was computed for the upstream's bytes.
            chunk = _without(chunk, "obfuscation")
        if self._own_id is not None:
            chunk = {**chunk, "id": self._own_id}
        if not self._obfuscates:
            return frame(chunk)
        body = orjson.dumps({**chunk, "obfuscation": ""})
        return frame({**chunk, "obfuscation": token_hex(_PADDING_BYTES)[: _PADDING_BYTES - len(body) % _PADDING_BYTES]})


def _without(chunk: Chunk, name: str) -> Chunk:
    return {key: value for key, value in chunk.items() if key != name}


def as_chunk(completion: Chunk) -> Chunk:
    """Convert the completion of an upstream that does not stream into the only chunk of a stream."""
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
    # Tool calls have an index in deltas, which they do not have in messages.
    if not isinstance(message, dict) or not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]}
