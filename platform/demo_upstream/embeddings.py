"""Embeddings by feature hashing: each word is hashed to a dimension and a sign, so texts with common words are similar.

Stop words count only in texts that have no other words.
"""

import base64
import math
import re
import struct
from collections import Counter
from hashlib import blake2b
from typing import Any

from demo_upstream import tokens
from demo_upstream.request import EmbeddingsRequest

WORD = re.compile(r"\w+")
COMMON_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be by can do for from has have how i in is it its my of on or that the this to was what "
        "when where which who why will with you your"
    )
)


def embed(text: str, *, dimensions: int) -> list[float]:
    """Return a unit vector for a text."""
    vector = [0.0] * dimensions
    words = WORD.findall(text.lower()) or [text]
    weights = Counter([word for word in words if word not in COMMON_WORDS] or words)
    for word, times in weights.items():
        place = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
        vector[(place >> 1) % dimensions] += math.sqrt(times) * (1 if place & 1 else -1)
    length = math.hypot(*vector)
    if length == 0:
        # Words of opposite signs have cancelled each other out.
        return [1.0, *vector[1:]]
    return [value / length for value in vector]


def body(request: EmbeddingsRequest) -> dict[str, Any]:
    """Return the response to a request."""
    data = []
    for index, text in enumerate(request.input):
        value: Any = embed(text, dimensions=request.dimensions)
        if request.encoding_format == "base64":
            # Little-endian 32-bit floats, as OpenAI's SDK decodes them.
            value = base64.b64encode(struct.pack(f"<{len(value)}f", *value)).decode()
        data.append({"object": "embedding", "index": index, "embedding": value})
    spent = sum(tokens.count(text) for text in request.input)
    usage = {"prompt_tokens": spent, "total_tokens": spent}
    return {"object": "list", "data": data, "model": request.model, "usage": usage}
