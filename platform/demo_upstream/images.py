"""Images without a model: stripes with colors derived from the prompt, as PNG written by the standard library.

`/v1/images/generations` and `/v1/images/edits` return the image, or with `stream` partial images first, which have
fewer stripes.
"""

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from demo_upstream import tokens
from demo_upstream.errors import DemoApiError

SIDE = 64
_STRIPES = 8
_MOST_PARTIAL = 3
_IMAGE_TOKENS = 64
Fields = Mapping[str, Any]


def body(fields: Fields, *, pictures: int, created: int) -> dict[str, Any]:
    """Return the response to a request with a number of input images."""
    prompt = _prompt(fields)
    return {
        "created": created,
        "data": [{"b64_json": _picture(prompt, pictures, _STRIPES), "revised_prompt": prompt}],
        "output_format": "png",
        "size": f"{SIDE}x{SIDE}",
        "usage": _usage(prompt, pictures),
    }


def events(fields: Fields, *, pictures: int, created: int) -> Iterator[dict[str, Any]]:
    """Yield the response as the data of server-sent events."""
    prompt, kind = _prompt(fields), "image_edit" if pictures else "image_generation"
    common = {"created_at": created, "output_format": "png", "size": f"{SIDE}x{SIDE}"}
    count = min(int(fields.get("partial_images") or 0), _MOST_PARTIAL)
    for index in range(count):
        stripes = _STRIPES * (index + 1) // (count + 1)
        partial = {"partial_image_index": index, "b64_json": _picture(prompt, pictures, stripes)}
        yield {"type": f"{kind}.partial_image", **common, **partial}
    whole = {"b64_json": _picture(prompt, pictures, _STRIPES), "usage": _usage(prompt, pictures)}
    yield {"type": f"{kind}.completed", **common, **whole}


def _prompt(fields: Fields) -> str:
    prompt = fields.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise DemoApiError("Missing required parameter: 'prompt'.", param="prompt")
    return prompt


def _picture(prompt: str, pictures: int, stripes: int) -> str:
    seed = blake2b(f"{prompt}\n{pictures}".encode(), digest_size=3 * _STRIPES).digest()
    colours = [seed[3 * index : 3 * index + 3] if index < stripes else b"\xff\xff\xff" for index in range(_STRIPES)]
    rows = b"".join(b"\0" + colours[row * _STRIPES // SIDE] * SIDE for row in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return base64.b64encode(png).decode()


def _usage(prompt: str, pictures: int) -> dict[str, Any]:
    words, seen = tokens.count(prompt), pictures * _IMAGE_TOKENS
    return {
        "input_tokens": words + seen,
        "input_tokens_details": {"text_tokens": words, "image_tokens": seen},
        "output_tokens": _IMAGE_TOKENS,
        "total_tokens": words + seen + _IMAGE_TOKENS,
    }
