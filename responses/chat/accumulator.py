"""From the chunks of a streamed chat completion to the completion that they add up to.

Strings go on where they left off, lists too; entries with an `index` are put together by it. Whatever an upstream adds
of its own is folded by the same rule.
"""

from typing import Any

from responses.engine.chat.converter import Chunk

# Said once, if at all, though some servers repeat them in each chunk.
_ONCE = {"id", "type", "role", "name", "format", "signature"}
_NOT_OF_THE_WHOLE = {"object", "choices", "obfuscation"}


class _Text(list[str]):
    """A string that is still being written: joining it for each delta would take the square of its length."""


class Folded:
    """The completion so far."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Chunk) -> None:
        """Take in one chunk."""
        told = {name: value for name, value in chunk.items() if name not in _NOT_OF_THE_WHOLE and value is not None}
        self._head.update(told)
        for choice in chunk.get("choices") or []:
            if isinstance(choice, dict):
                self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index") or 0
        known = self._choices.setdefault(index, {"message": {}, "logprobs": {}, "finish_reason": None})
        for part, told in (("message", choice.get("delta")), ("logprobs", choice.get("logprobs"))):
            if isinstance(told, dict):
                _merge(known[part], told)
        known["finish_reason"] = choice.get("finish_reason") or known["finish_reason"]

    def completion(self) -> dict[str, Any]:
        """The whole, as an upstream that does not stream would have sent it."""
        choices = [self._choice(index) for index in sorted(self._choices)]
        return {**self._head, "object": "chat.completion", "choices": choices}

    def _choice(self, index: int) -> dict[str, Any]:
        known = self._choices[index]
        message = {"role": "assistant", "content": None, "refusal": None, **_settled(known["message"])}
        for call in message.get("tool_calls") or ():
            call.pop("index", None)
            call.setdefault("type", "function")
        return {
            "index": index,
            "message": message,
            "logprobs": _settled(known["logprobs"]) or None,
            "finish_reason": known["finish_reason"] or "stop",
        }


def _merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif name in _ONCE:
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
    """Add entries; those with an index go on with the one that has it already."""
    for entry in more:
        if not isinstance(entry, dict) or "index" not in entry:
            listed.append(entry)
            continue
        known = next((one for one in listed if isinstance(one, dict) and one.get("index") == entry["index"]), None)
        if known is None:
            known = {}
            listed.append(known)
        _merge(known, entry)


def _settled(value: Any) -> Any:
    match value:
        case _Text():
            return "".join(value)
        case list():
            return [_settled(entry) for entry in value]
        case dict():
            return {name: _settled(entry) for name, entry in value.items()}
    return value
