"""Check of chat completions that are passed through: an answer with which a response would fail is no success here.

Each choice is converted like the answer of a response, only for its outcome. Clients get the upstream's chunks, with
finish reasons that OpenAI does not define in OpenAI's words.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kernel.errors import Failure
from responses.chat.chunks import as_chunk
from responses.engine.converter.chat import ChatConverter, Chunk
from responses.engine.converter.finish_reasons import FinishKind, finish_kind
from responses.engine.turn import Sampling

_DEFINED = {"stop", "length", "tool_calls", "content_filter", "function_call"}
_WORDS = {FinishKind.LENGTH: "length", FinishKind.CONTENT_FILTER: "content_filter"}


class AnswerCheck:
    """Check of one answer. `several`: the client asked for more than one choice.

    `to_failure` maps an error inside a choice to a failure. `limit` is the output limit of a single choice in tokens,
    which several servers ignore.
    """

    def __init__(self, *, several: bool, to_failure: Callable[[object], Failure], limit: int | None = None) -> None:
        self._several = several
        self._sampling = Sampling(max_output_tokens=None if several else limit)
        self._to_failure = to_failure
        self._converters: dict[str, ChatConverter] = {}
        self._called = set[str]()

    def read_all(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Read the chunks of one network read; return those up to the end, with OpenAI's finish reasons."""
        checked: list[Chunk] = []
        for chunk in chunks:
            checked.append(self._read(chunk))
            if self.is_over:
                break
        return checked

    def _read(self, chunk: Chunk) -> Chunk:
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return chunk
        if all(isinstance(choice, dict) and "message" in choice and "delta" not in choice for choice in choices):
            # Some servers send a whole completion as the only event of a stream.
            chunk = as_chunk(chunk)
            choices = chunk["choices"]
        if self._several:
            for choice in choices:
                self._of(choice).feed([{"choices": [_only(choice)]}])
        else:
            converter = self._of(None)
            converter.feed([{"choices": choices}])
            if converter.limited_to is not None:
                limited = [{**choice, "finish_reason": "length"} for choice in choices if isinstance(choice, dict)]
                return {**chunk, "choices": limited}
        return self._in_our_words(chunk, choices, whole=False)

    def read_whole(self, completion: Chunk) -> Chunk:
        """Read a completion that was not streamed; return it with OpenAI's finish reasons."""
        choices = completion.get("choices")
        if not isinstance(choices, list) or not choices:
            self._of(None).whole(completion)
            return completion
        for choice in choices if self._several else choices[:1]:
            converter = self._of(choice)
            converter.whole({"choices": [_only(choice)], "usage": completion.get("usage")})
            if (length := converter.limited_to) is not None:
                return {**completion, "choices": [_cut(choice, length)]}
        return self._in_our_words(completion, choices, whole=True)

    @property
    def is_over(self) -> bool:
        """True if the rest of the answer is not needed."""
        return any(converter.over for converter in self._converters.values())

    def end(self, *, done: bool) -> Failure | None:
        """Return the failure of the answer at its end. `done`: the stream ended with `[DONE]`."""
        if not self._converters:
            self._of(None)
        for converter in self._converters.values():
            converter.end(done=done)
        failures = (converter.result().failure for converter in self._converters.values())
        return next(filter(None, failures), None)

    def _of(self, choice: Any) -> ChatConverter:
        index = str(choice.get("index") or 0) if self._several and isinstance(choice, dict) else "0"
        if index not in self._converters:
            self._converters[index] = ChatConverter(
                first_output_index=0, sampling=self._sampling, to_failure=self._to_failure
            )
        return self._converters[index]

    def _in_our_words(self, chunk: Chunk, choices: list[Any], *, whole: bool) -> Chunk:
        changed = [self._renamed(choice, whole=whole) for choice in choices]
        return (
            {**chunk, "choices": changed} if any(a is not b for a, b in zip(changed, choices, strict=True)) else chunk
        )

    def _renamed(self, choice: Any, *, whole: bool) -> Any:
        if not isinstance(choice, dict):
            return choice
        message = choice.get("message") or choice.get("delta")
        if isinstance(message, dict) and message.get("tool_calls"):
            self._called.add(str(choice.get("index")))
        if choice.get("error"):
            # Reported at the end, as all errors are.
            return {**{name: value for name, value in choice.items() if name != "error"}, "finish_reason": None}
        reason = choice.get("finish_reason")
        if (isinstance(reason, str) and reason in _DEFINED) or (not reason and not whole):
            return choice
        kind = finish_kind(str(reason or ""))
        if kind is FinishKind.FAILED:
            return {**choice, "finish_reason": None}
        complete = "tool_calls" if str(choice.get("index")) in self._called else "stop"
        return {**choice, "finish_reason": _WORDS.get(kind, complete)}


def _cut(choice: Chunk, length: int) -> Chunk:
    """Return a whole choice that the output limit ends after so many characters of its text."""
    message = choice.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        message = {**message, "content": message["content"][:length]}
    return {**choice, "message": message, "finish_reason": "length"}


def _only(choice: Any) -> Any:
    return {**choice, "index": 0} if isinstance(choice, dict) else choice
