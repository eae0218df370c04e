"""The demo's tokenizer: a token is a word with the space before it, long words in pieces of sixteen characters."""

import math
import re
from hashlib import blake2b
from typing import TypedDict

PIECE = re.compile(r"\s*\S{1,16}|\s+\Z")
OTHER_WORDS = PIECE.findall(" the a of to and in is it you that he was for on are with as I his they we")


class TokenChance(TypedDict):
    """How likely a token was: a natural logarithm, and the token's UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class Logprob(TokenChance):
    """A token that was said, with those that might have been said instead."""

    top_logprobs: list[TokenChance]


def split(text: str) -> list[str]:
    """The tokens of a text; joined, they are the text again."""
    return PIECE.findall(text)


def count(text: str) -> int:
    """How many tokens a text has."""
    return len(split(text))


def logprob(token: str, *, position: int, alternatives: int) -> Logprob:
    """A made-up but plausible logprob: always the same for a token at a position, and probabilities sum to less than 1.

    `alternatives` counts the entries of `top_logprobs`, of which the token itself is the first.
    """
    surprise = blake2b(f"{position}:{token}".encode(), digest_size=1).digest()[0]
    said = _chance(token, -(surprise + 1) / 512)
    left = 1 - math.exp(said["logprob"])
    others = [word for word in OTHER_WORDS if word != token]
    unsaid = [_chance(word, math.log(left) - rank * math.log(2)) for rank, word in enumerate(others, start=1)]
    return Logprob(**said, top_logprobs=[said, *unsaid][:alternatives])


def _chance(token: str, logarithm: float) -> TokenChance:
    return TokenChance(token=token, logprob=round(logarithm, 6), bytes=list(token.encode()))
