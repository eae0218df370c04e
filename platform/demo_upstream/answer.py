"""The answer to a chat request as tokens, and its two forms: a stream of chunks, or one completion.

Both forms are built from the same tokens, so they cannot differ.
"""

import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from demo_upstream import rules, tokens
from demo_upstream.models import DemoModel
from demo_upstream.request import DemoChatRequest

Wire = dict[str, Any]

SENTENCES = {"none": 0, "minimal": 1, "low": 1, "medium": 2}


class GeneratedToken(NamedTuple):
    """A token of a field of the message. `call` is the index of the tool call that it belongs to.

    `opens` has the id and the name of the call, in its first token only.
    """

    field: str
    text: str
    call: int = 0
    opens: Mapping[str, str] | None = None


class Answer:
    """The answer to a request."""

    def __init__(self, chat: DemoChatRequest, model: DemoModel) -> None:
        # Everything except the time is derived from the request, so answers are equal with and without streaming.
        seed = blake2b(chat.model_dump_json(exclude={"stream", "stream_options"}).encode(), digest_size=16).digest()
        rule, reply = rules.reply(chat)
        generated = [GeneratedToken("reasoning_content", text) for text in _thoughts(rule, chat, model)]
        for index, call in enumerate(reply.calls):
            identity = blake2b(seed + index.to_bytes(4), digest_size=12).hexdigest()
            generated.append(GeneratedToken("tool_calls", "", index, {"id": f"call_{identity}", "name": call.name}))
            generated += [GeneratedToken("tool_calls", text, index) for text in tokens.split(call.arguments)]
        text = reply.text
        for stop in chat.stop or ():
            text = text.partition(stop)[0]
        generated += [GeneratedToken("content", token) for token in tokens.split(text)]
        self.tokens = generated[: chat.token_limit]
        is_cut = len(self.tokens) < len(generated)
        self._finish_reason = "length" if is_cut else "tool_calls" if reply.calls else "stop"
        self._chat = chat
        self._head = {
            "id": f"chatcmpl-{seed.hex()[:24]}",
            "created": int(time.time()),
            "model": chat.model,
            "service_tier": "default",
            "system_fingerprint": "fp_demo",
        }

    def completion(self) -> Wire:
        """Return the answer as one body."""
        texts: dict[str, str] = {}
        calls: list[Wire] = []
        for token in self.tokens:
            texts[token.field] = texts.get(token.field, "") + token.text
            if token.opens is not None:
                function = {"name": token.opens["name"], "arguments": ""}
                calls.append({"id": token.opens["id"], "type": "function", "function": function})
            elif token.field == "tool_calls":
                calls[-1]["function"]["arguments"] += token.text
        # A message with tool calls has no content.
        message: Wire = {"role": "assistant", "content": None if calls else texts.get("content", ""), "refusal": None}
        message |= {"reasoning_content": texts["reasoning_content"]} if "reasoning_content" in texts else {}
        message |= {"tool_calls": calls} if calls else {}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(range(len(self.tokens))),
            "finish_reason": self._finish_reason,
        }
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def word(self, position: int) -> Wire:
        """Return the chunk with the token at a position."""
        token = self.tokens[position]
        delta: Wire = {token.field: token.text}
        if token.opens is not None:
            function = {"name": token.opens["name"], "arguments": ""}
            called = {"index": token.call, "id": token.opens["id"], "type": "function", "function": function}
            delta = {"tool_calls": [called]}
        elif token.field == "tool_calls":
            delta = {"tool_calls": [{"index": token.call, "function": {"arguments": token.text}}]}
        return self.chunk(delta, logprobs=self._logprobs([position]))

    def closing(self) -> Iterator[Wire]:
        """Yield the chunks after the last token."""
        yield self.chunk({}, finish_reason=self._finish_reason)
        if self._includes_usage:
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}

    def chunk(self, delta: Wire, *, logprobs: Wire | None = None, finish_reason: str | None = None) -> Wire:
        """Return a chunk."""
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        # If the client requests usage, OpenAI sends a null `usage` in every chunk except the last.
        usage = {"usage": None} if self._includes_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage}

    @property
    def _includes_usage(self) -> bool:
        return self._chat.stream_options is not None and bool(self._chat.stream_options.include_usage)

    def _usage(self) -> Wire:
        prompt = prompt_tokens(self._chat)
        thought = sum(token.field == "reasoning_content" for token in self.tokens)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": len(self.tokens),
            "total_tokens": prompt + len(self.tokens),
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }

    def _logprobs(self, positions: range | list[int]) -> Wire | None:
        if not self._chat.logprobs:
            return None
        count = self._chat.top_logprobs or 0
        content = [
            tokens.logprob(self.tokens[position].text, position=position, alternatives=count)
            for position in positions
            if self.tokens[position].field == "content"
        ]
        return {"content": content, "refusal": None} if content else None


def prompt_tokens(chat: DemoChatRequest) -> int:
    """Return the number of tokens of texts, calls and functions in a request. Other parts count one token."""
    total = 0
    for message in chat.messages:
        total += sum(1 if part.text is None else tokens.count(part.text) for part in message.content)
        total += sum(1 + tokens.count(call.function.arguments) for call in message.calls)
    return total + sum(tokens.count(function.model_dump_json()) for function in chat.functions)


def _thoughts(rule: str, chat: DemoChatRequest, model: DemoModel) -> list[str]:
    """Return the tokens of the reasoning, which names the rule that matched."""
    if model.base != "demo-reasoning":
        return []
    sentences = (
        f"I go through my table of rules; the first that fits is “{rule}”.",
        f" The message has {tokens.count(chat.asked)} tokens.",
        " A demo does not really think.",
    )
    return tokens.split("".join(sentences[: SENTENCES.get(chat.reasoning_effort or "medium", len(sentences))]))
