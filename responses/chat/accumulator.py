"""Accumulation of the chunks of a streamed chat completion into a complete one.

Strings and lists are appended, and list entries with the same `index` are merged. Fields that upstreams add to OpenAI's
follow the same rules.
"""

from typing import Any

from responses.engine.converter.chat import Chunk

# These are sent as a whole, so they are not appended: some servers repeat them in each chunk.
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
                self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index") or 0
        known = self._choices.setdefault(index, {"message": {}, "logprobs": {}, "finish_reason": None})
        for part, delta in (("message", choice.get("delta")), ("logprobs", choice.get("logprobs"))):
            if isinstance(delta, dict):
                _merge(known[part], delta)
        known["finish_reason"] = choice.get("finish_reason") or known["finish_reason"]

    def completion(self) -> dict[str, Any]:
        """Return the completion as an upstream that does not stream would have sent it."""
        choices = [self._choice(index) for index in sorted(self._choices)]
        return {**self._head, "object": "chat.completion", "choices": choices}

    def _choice(self, index: int) -> dict[str, Any]:
        known = self._choices[index]
        message = {"role": "assistant", "content": None, "refusal": None, **_joined(known["message"])}
        for call in message.get("tool_calls") or ():
            # The index exists in deltas only, and some upstreams omit the type.
            call.pop("index", None)
            call.setdefault("type", "function")
        return {
            "index": index,
            "message": message,
            "logprobs": _joined(known["logprobs"]) or None,
            "finish_reason": known["finish_reason"] or "stop",
        }


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
    # Deltas of parallel tool calls arrive interleaved; their index says which call they continue.
    for entry in more:
        if not isinstance(entry, dict) or "index" not in entry:
            listed.append(entry)
            continue
        known = next((one for one in listed if isinstance(one, dict) and one.get("index") == entry["index"]), None)
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
