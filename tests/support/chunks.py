"""Chunks of chat completions as upstreams send them."""

from typing import Any

Chunk = dict[str, Any]
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def chunk(*, finish: str | None = None, **delta: Any) -> Chunk:
    """Return a chunk with one choice."""
    return _chunk([{"index": 0, "delta": delta, "finish_reason": finish}])


def usage(**numbers: Any) -> Chunk:
    """Return the chunk with the usage and no choice."""
    return {**_chunk([]), "usage": numbers or USAGE}


def text(*pieces: str, finish: str = "stop") -> list[Chunk]:
    """Return the chunks of a text answer: one per piece, the finish reason and the usage."""
    return [chunk(role="assistant", content=""), *(chunk(content=p) for p in pieces), chunk(finish=finish), usage()]


def calls(**functions: str) -> list[Chunk]:
    """Return the chunks of an answer with function calls, whose ids are `call_<name>`."""
    tool_calls = [
        {"index": i, "id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(functions.items())
    ]
    opening = chunk(role="assistant", content=None)
    return [opening, *(chunk(tool_calls=[call]) for call in tool_calls), chunk(finish="tool_calls"), usage()]


def completion(content: str) -> Chunk:
    """Return a chat completion as sent without `stream`."""
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {**_chunk([choice]), "object": "chat.completion", "usage": USAGE}


def _chunk(choices: list[Any]) -> Chunk:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "scripted"}
    return {**head, "choices": choices}
