"""The tokenizer: a token is a word with the space before it; long words are split every sixteen characters."""

import math
import re
from hashlib import blake2b
from typing import Any

PIECE = re.compile(r"\s*\S{1,16}|\s+\Z")
OTHER_WORDS = PIECE.findall(" the a of to and in is it you that he was for on are with as I his they we")


def split(text: str) -> list[str]:
    """Return the tokens of a text, whose concatenation is the text."""
    return PIECE.findall(text)


def count(text: str) -> int:
    """Return the number of tokens of a text."""
    return len(split(text))


def logprob(token: str, *, position: int, alternatives: int) -> dict[str, Any]:
    """Return an invented but plausible logprob, constant for a token and position. Probabilities sum to less than 1.

    `alternatives` is the number of entries of `top_logprobs`; the first is the token itself.
    """
    surprise = blake2b(f"{position}:{token}".encode(), digest_size=1).digest()[0]
    chosen = _chance(token, -(surprise + 1) / 512)
    left = 1 - math.exp(chosen["logprob"])
    others = [word for word in OTHER_WORDS if word != token]
    others_chances = [_chance(word, math.log(left) - rank * math.log(2)) for rank, word in enumerate(others, start=1)]
    return {**chosen, "top_logprobs": [chosen, *others_chances][:alternatives]}


def _chance(token: str, logarithm: float) -> dict[str, Any]:
    return {"token": token, "logprob": round(logarithm, 6), "bytes": list(token.encode())}
