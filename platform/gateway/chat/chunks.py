"""Chunks of a streamed chat completion: conversion for the client, and accumulation into a whole completion."""

from secrets import token_hex
from typing import Any

import orjson

from engine.converter.base import reported_usage
from engine.converter.chat import Chunk
from providers.event_stream import unnamed_event

_PADDING_BYTES = 64


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
        if reported := chunk.get("usage"):
            chunk = with_valid_usage(chunk)
        if reported and not chunk.get("usage"):
            # A chunk without choices contains only an invalid usage, and is dropped.
            return self._event(chunk) if chunk.get("choices") else b""
        if reported:
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
            return unnamed_event(chunk)
        body = orjson.dumps({**chunk, "obfuscation": ""})
        return unnamed_event(
            {**chunk, "obfuscation": token_hex(_PADDING_BYTES)[: _PADDING_BYTES - len(body) % _PADDING_BYTES]}
        )


_NUMBERS = ("prompt_tokens", "completion_tokens", "total_tokens")


def with_valid_usage(chunk: Chunk) -> Chunk:
    """Return a completion or chunk whose usage has whole numbers, as typed clients expect, or none."""
    usage = chunk.get("usage")
    if usage is None or (isinstance(usage, dict) and all(type(usage.get(name)) is int for name in _NUMBERS)):
        return chunk
    if (found := reported_usage(usage)) is None:
        return _without(chunk, "usage")
    numbers = (found.input_tokens, found.output_tokens, found.input_tokens + found.output_tokens)
    return {**chunk, "usage": {**usage, **dict(zip(_NUMBERS, numbers, strict=True))}}


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


# Values of these fields are not appended: servers send them as a whole, and some repeat them in each chunk.
_WHOLE_FIELDS = {"id", "type", "role", "name", "format", "signature"}
_CHUNK_FIELDS = {"object", "choices", "obfuscation"}


class _Text(list[str]):
    """Pieces of a string, joined at the end: appending each delta to a string would take quadratic time."""


class CompletionAccumulator:
    """Completion that grows with each chunk."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        # Nulls must not replace values: the usage is null in all chunks but one.
        fields = {name: value for name, value in chunk.items() if name not in _CHUNK_FIELDS and value is not None}
        self._head.update(fields)
        for choice in chunk.get("choices") or []:
            if isinstance(choice, dict):
                index = choice.get("index") or 0
                known = self._choices.setdefault(index, {"message": {}, "logprobs": {}, "finish_reason": None})
                for part, delta in (("message", choice.get("delta")), ("logprobs", choice.get("logprobs"))):
                    if isinstance(delta, dict):
                        _merge(known[part], delta)
                known["finish_reason"] = choice.get("finish_reason") or known["finish_reason"]

    def completion(self) -> dict[str, Any]:
        """Return the completion as an upstream that does not stream would have sent it."""
        choices = []
        for index, choice in sorted(self._choices.items()):
            message = {"role": "assistant", "content": None, "refusal": None, **_joined(choice["message"])}
            for call in message.get("tool_calls") or ():
                # The index exists in deltas only, and some upstreams omit the type.
                call.pop("index", None)
                call.setdefault("type", "function")
            logprobs, reason = _joined(choice["logprobs"]) or None, choice["finish_reason"] or "stop"
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        return {**self._head, "object": "chat.completion", "choices": choices}


def _merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif name in _WHOLE_FIELDS:
            into[name] = known or value
        elif isinstance(value, str):
            if isinstance(known, _Text):
                known.append(value)
            else:
                into[name] = _Text([value])
        elif isinstance(value, dict):
            inner = known if isinstance(known, dict) else {}
            _merge(inner, value)
            into[name] = inner
        elif isinstance(value, list):
            listed = known if isinstance(known, list) else []
            _extend(listed, value)
            into[name] = listed
        else:
            into[name] = value


def _extend(listed: list[Any], more: list[Any]) -> None:
    # Deltas of parallel tool calls may be interleaved. Their index tells which call they continue.
    for entry in more:
        if not isinstance(entry, dict) or "index" not in entry:
            listed.append(entry)
            continue
        known = next((item for item in listed if isinstance(item, dict) and item.get("index") == entry["index"]), None)
        if known is None:
            known = {}
            listed.append(known)
        _merge(known, entry)


def _joined(value: Any) -> Any:
    match value:
        case _Text():
            return "".join(value)
        case list():
            return [_joined(entry) for entry in value]
        case dict():
            return {name: _joined(entry) for name, entry in value.items()}
    return value
