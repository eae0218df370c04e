"""Generation: converts a reply to tokens, cut at a stop sequence or at the token limit.

Completions and streams are both built from these tokens, so they cannot differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from demo_upstream import rules, tokens
from demo_upstream.conversation import DemoConversation
from demo_upstream.request import DemoChatRequest
from demo_upstream.rules import RefusalReply, Reply, ToolCallReply
from demo_upstream.tools import DemoCall

THOUGHTS = {"none": 0, "minimal": 1, "low": 1, "medium": 2}


class TokenKind(Enum):
    """Part of the message that a token belongs to; the value is its field in messages and deltas."""

    REASONING = "reasoning_content"
    TEXT = "content"
    REFUSAL = "refusal"
    CALL = "tool_calls"


@dataclass(frozen=True)
class Opening:
    """The start of a tool call."""

    id: str
    name: str


@dataclass(frozen=True)
class GeneratedToken:
    """One token. `call` is the index of its tool call; `opening` is set on the first token of each call."""

    kind: TokenKind
    text: str
    call: int = 0
    opening: Opening | None = None


@dataclass(frozen=True)
class Generation:
    """The tokens generated for a request, and its usage."""

    pieces: tuple[GeneratedToken, ...]
    finish_reason: str
    prompt_tokens: int

    def of(self, kind: TokenKind) -> list[GeneratedToken]:
        """Return the tokens of one kind in order."""
        return [piece for piece in self.pieces if piece.kind is kind]

    def usage(self) -> dict[str, object]:
        """Return the `usage` object."""
        generated = len(self.pieces)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": len(self.of(TokenKind.REASONING))},
        }


def generate(conversation: DemoConversation, *, seed: bytes) -> Generation:
    """Generate the answer to a conversation. Call ids are derived from `seed`, so equal requests get equal answers."""
    rule, reply = rules.reply(conversation)
    request = conversation.request
    pieces = [*_thoughts(rule, conversation), *_pieces(reply, stops=request.stop or [], seed=seed)]
    limit = request.token_limit
    if limit is not None and len(pieces) > limit:
        pieces, finish_reason = pieces[:limit], "length"
    else:
        finish_reason = "tool_calls" if isinstance(reply, ToolCallReply) else "stop"
    return Generation(pieces=tuple(pieces), finish_reason=finish_reason, prompt_tokens=prompt_tokens(request))


def prompt_tokens(request: DemoChatRequest) -> int:
    """Return the number of tokens of texts, calls and functions in a request. Other parts count one token."""
    total = 0
    for message in request.messages:
        total += sum(1 if part.text is None else tokens.count(part.text) for part in message.content)
        total += sum(1 + tokens.count(call.function.arguments) for call in message.calls)
    return total + sum(tokens.count(function.model_dump_json()) for function in request.functions)


def _thoughts(rule: str, conversation: DemoConversation) -> Iterator[GeneratedToken]:
    """Yield the reasoning, which names the rule that matched."""
    if not conversation.model.reasons:
        return
    thoughts = (
        f"I go through my table of rules; the first that fits is “{rule}”.",
        f" The message has {tokens.count(conversation.asked)} tokens.",
        " A demo does not really think.",
    )
    effort = conversation.request.reasoning_effort or "medium"
    text = "".join(thoughts[: THOUGHTS.get(effort, len(thoughts))])
    yield from (GeneratedToken(TokenKind.REASONING, token) for token in tokens.split(text))


def _pieces(reply: Reply, *, stops: Sequence[str], seed: bytes) -> Iterator[GeneratedToken]:
    if isinstance(reply, ToolCallReply):
        for index, call in enumerate(reply.calls):
            yield from _call_pieces(call, index=index, seed=seed)
    elif isinstance(reply, RefusalReply):
        yield from (GeneratedToken(TokenKind.REFUSAL, token) for token in tokens.split(reply.text))
    else:
        yield from (GeneratedToken(TokenKind.TEXT, token) for token in tokens.split(_until(reply.text, stops)))


def _call_pieces(call: DemoCall, *, index: int, seed: bytes) -> Iterator[GeneratedToken]:
    identity = blake2b(seed + index.to_bytes(4), digest_size=12).hexdigest()
    yield GeneratedToken(TokenKind.CALL, "", call=index, opening=Opening(id=f"call_{identity}", name=call.name))
    yield from (GeneratedToken(TokenKind.CALL, token, call=index) for token in tokens.split(call.arguments))


def _until(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first stop sequence."""
    ends = [position for stop in stops if stop and (position := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]
