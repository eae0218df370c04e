"""Check of chat completions that are passed through. Answers that would make a response fail are errors here too.

Each choice is converted like the answer of a response, but only its outcome is used. Clients get the upstream's chunks.
Finish reasons that OpenAI does not define are replaced by OpenAI's. A client that asked for one choice gets only one,
with the index 0.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from core.errors import Failure
from engine.converter.chat import ChatConverter, Chunk
from engine.converter.chat_choices import ChoiceSelector
from engine.converter.finish_reasons import FinishKind, finish_kind, is_finish_reason
from engine.turn import Sampling
from gateway.chat.chunks import as_chunk

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
        self._choices = ChoiceSelector()
        self._last: Chunk = {}
        self._called = set[str]()

    def read_all(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Read the chunks of one network read. Return them up to the answer's end, with OpenAI's finish reasons."""
        checked: list[Chunk] = []
        for chunk in chunks:
            checked += self._read(chunk)
            if self.is_over:
                break
        return checked

    def read_rest(self) -> list[Chunk]:
        """Return the chunks that could be assigned to their choice only at the end of the stream."""
        return self._divided(self._last, self._choices.end())

    def _read(self, chunk: Chunk) -> list[Chunk]:
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return [chunk]
        if all(isinstance(choice, dict) and "message" in choice and "delta" not in choice for choice in choices):
            # Some servers send a whole completion as the only event of a stream.
            chunk = as_chunk(chunk)
            choices = chunk["choices"]
        if self._several:
            for choice in choices:
                self._of(choice).feed([{"choices": [_only(choice)]}])
            return [self._in_our_words(chunk, choices, whole=False)]
        if not all(isinstance(choice, dict) for choice in choices):
            # The converter sets the reason of the failure.
            self._of(None).feed([chunk])
            return []
        selected = self._choices.select(choices)
        if selected is choices and choices[0].get("index") == 0:
            return [self._read_only(chunk, choices[0])]
        self._last = {name: value for name, value in chunk.items() if name != "usage"}
        usage = [{**chunk, "choices": []}] if chunk.get("usage") else []
        return self._divided(self._last, selected) + usage

    def _divided(self, chunk: Chunk, selected: Sequence[Any]) -> list[Chunk]:
        # Each choice gets its own chunk, because many clients read only the first choice of a chunk.
        divided: list[Chunk] = []
        for choice in map(_only, selected):
            divided.append(self._read_only({**chunk, "choices": [choice]}, choice))
            if self.is_over:
                break
        return divided

    def _read_only(self, chunk: Chunk, choice: Chunk) -> Chunk:
        """Read a chunk with this choice alone."""
        converter = self._of(None)
        converter.feed([{"choices": [choice]}])
        if converter.limited_to is not None:
            return {**chunk, "choices": [{**choice, "finish_reason": "length"}]}
        return self._in_our_words(chunk, [choice], whole=False)

    def read_whole(self, completion: Chunk) -> Chunk:
        """Read a completion that was not streamed, and return it with OpenAI's finish reasons."""
        choices = completion.get("choices")
        if not isinstance(choices, list) or not choices:
            self._of(None).whole(completion)
            return completion
        if not self._several and (len(choices) > 1 or not isinstance(choices[0], dict) or choices[0].get("index") != 0):
            choices = [_only(choices[0])]
            completion = {**completion, "choices": choices}
        for choice in choices:
            converter = self._of(choice)
            converter.whole({"choices": [_only(choice)], "usage": completion.get("usage")})
            if (length := converter.limited_to) is not None:
                return {**completion, "choices": [_cut(choice, length)]}
        return self._in_our_words(completion, choices, whole=True)

    @property
    def is_over(self) -> bool:
        """True if the rest of the answer is not needed."""
        return any(converter.over for converter in self._converters.values())

    @property
    def is_finished(self) -> bool:
        """True if all choices that have begun have a finish reason."""
        converters = self._converters.values()
        return bool(converters) and all(converter.is_finished for converter in converters)

    def is_completed_by(self, rest: Sequence[Chunk]) -> bool:
        """Return true if the last chunks of a stream prove that no output is missing before them."""
        return not self._several and self._of(None).is_completed_by(rest)

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
            # Errors are reported at the end of the answer.
            return {**{name: value for name, value in choice.items() if name != "error"}, "finish_reason": None}
        reason = choice.get("finish_reason")
        if (isinstance(reason, str) and reason in _DEFINED) or (not reason and not whole):
            return choice
        if not (whole or is_finish_reason(reason)):
            return {**choice, "finish_reason": None}
        kind = finish_kind(str(reason or ""))
        if kind is FinishKind.FAILED:
            return {**choice, "finish_reason": None}
        complete = "tool_calls" if str(choice.get("index")) in self._called else "stop"
        return {**choice, "finish_reason": _WORDS.get(kind, complete)}


def _cut(choice: Chunk, length: int) -> Chunk:
    """Return a whole choice, whose text the output limit has shortened to `length` characters."""
    message = choice.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        message = {**message, "content": message["content"][:length]}
    return {**choice, "message": message, "finish_reason": "length"}


def _only(choice: Any) -> Any:
    return {**choice, "index": 0} if isinstance(choice, dict) else choice
