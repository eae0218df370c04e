"""The two forms of an answer: chunks (`chat.completion.chunk` in server-sent events) or one `chat.completion`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from demo_upstream import tokens
from demo_upstream.generation import GeneratedToken, Generation, TokenKind
from demo_upstream.request import DemoChatRequest
from demo_upstream.steps import Script

Wire = Mapping[str, object]

DONE = b"data: [DONE]\n\n"
OBFUSCATED_LENGTH = 16


def frame(data: Wire) -> bytes:
    """Return a server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


@dataclass(frozen=True)
class Presenter:
    """Presents a generation as chunks or as one completion. `id` and `created` are equal in every chunk."""

    request: DemoChatRequest
    generation: Generation
    id: str
    created: int

    def completion(self) -> bytes:
        """Return the answer as one JSON body."""
        choice = {
            "index": 0,
            "message": self._message(),
            "logprobs": self._logprobs(list(enumerate(self.generation.pieces))),
            "finish_reason": self.generation.finish_reason,
        }
        head = self._head("chat.completion")
        return orjson.dumps({**head, "choices": [choice], "usage": self.generation.usage()})

    def script(self) -> Script:
        """Return the answer as a stream."""
        words = tuple(self._word(position, piece) for position, piece in enumerate(self.generation.pieces))
        return Script(
            opening=self._chunk({"role": "assistant", "content": ""}),
            words=words,
            closing=tuple(self._closing()),
        )

    def _closing(self) -> Iterator[bytes]:
        yield self._chunk({}, finish_reason=self.generation.finish_reason)
        if self._includes_usage:
            yield frame({**self._head("chat.completion.chunk"), "choices": [], "usage": self.generation.usage()})
        yield DONE

    def _word(self, position: int, piece: GeneratedToken) -> bytes:
        delta = {"tool_calls": [_call_delta(piece)]} if piece.kind is TokenKind.CALL else {piece.kind.value: piece.text}
        return self._chunk(delta, logprobs=self._logprobs([(position, piece)]), padding=self._padding(piece.text))

    def _chunk(
        self,
        delta: Wire,
        *,
        logprobs: Wire | None = None,
        finish_reason: str | None = None,
        padding: Wire | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        # OpenAI sends a null usage in every chunk but the last of a stream that was asked for it.
        usage = {"usage": None} if self._includes_usage else {}
        return frame({**self._head("chat.completion.chunk"), "choices": [choice], **usage, **(padding or {})})

    def _head(self, kind: str) -> Wire:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "service_tier": "default",
            "system_fingerprint": "fp_demo",
        }

    def _message(self) -> Wire:
        texts = {kind: "".join(piece.text for piece in self.generation.of(kind)) for kind in TokenKind}
        message: dict[str, object] = {
            "role": "assistant",
            "content": texts[TokenKind.TEXT] if self._speaks else None,
            "refusal": texts[TokenKind.REFUSAL] or None,
        }
        if texts[TokenKind.REASONING]:
            message["reasoning_content"] = texts[TokenKind.REASONING]
        calls = self._calls()
        if calls:
            message["tool_calls"] = calls
        return message

    @property
    def _speaks(self) -> bool:
        """True if the message has content, which refusals and calls do not."""
        return not self.generation.of(TokenKind.REFUSAL) and not self.generation.of(TokenKind.CALL)

    def _calls(self) -> list[Wire]:
        pieces = self.generation.of(TokenKind.CALL)
        calls: list[Wire] = []
        for piece in pieces:
            if piece.opening is not None:
                arguments = "".join(other.text for other in pieces if other.call == piece.call)
                function = {"name": piece.opening.name, "arguments": arguments}
                calls.append({"id": piece.opening.id, "type": "function", "function": function})
        return calls

    def _logprobs(self, pieces: Sequence[tuple[int, GeneratedToken]]) -> Wire | None:
        if not self.request.logprobs:
            return None
        count = self.request.top_logprobs or 0
        known = {
            kind.value: [
                tokens.logprob(piece.text, position=position, alternatives=count)
                for position, piece in pieces
                if piece.kind is kind
            ]
            for kind in (TokenKind.TEXT, TokenKind.REFUSAL)
        }
        return {kind: chances or None for kind, chances in known.items()} if any(known.values()) else None

    @property
    def _includes_usage(self) -> bool:
        return self.request.stream_options is not None and bool(self.request.stream_options.include_usage)

    def _padding(self, text: str) -> Wire | None:
        # Padding hides the length of tokens from eavesdroppers, if the client asks for it.
        options = self.request.stream_options
        if options is None or not options.include_obfuscation:
            return None
        return {"obfuscation": "x" * max(0, OBFUSCATED_LENGTH - len(text.encode()))}


def _call_delta(piece: GeneratedToken) -> Wire:
    if piece.opening is None:
        return {"index": piece.call, "function": {"arguments": piece.text}}
    function = {"name": piece.opening.name, "arguments": ""}
    return {"index": piece.call, "id": piece.opening.id, "type": "function", "function": function}
