"""Images of the demo upstream: deterministic PNGs, whole or preceded by partial images."""

import base64
import struct
import zlib
from collections.abc import AsyncIterator

import pytest

from demo_upstream import images
from demo_upstream.images import SIDE
from tests.support.demo_upstream import Demo, talking


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


async def drawn(demo: Demo, prompt: str) -> bytes:
    """Return the image for a prompt."""
    answer = await demo.post("/images/generations", {"model": "demo-image", "prompt": prompt})
    assert answer.json["usage"]["output_tokens"] > 0
    return base64.b64decode(answer.json["data"][0]["b64_json"])


async def test_an_image_is_a_png_of_the_requested_size(demo: Demo) -> None:
    picture = await drawn(demo, "A cat")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", picture[16:24]) == (SIDE, SIDE)
    length = struct.unpack(">I", picture[33:37])[0]
    assert len(zlib.decompress(picture[41 : 41 + length])) == SIDE * (1 + 3 * SIDE)


async def test_a_prompt_always_gives_the_same_image(demo: Demo) -> None:
    assert await drawn(demo, "A cat") == await drawn(demo, "A cat") != await drawn(demo, "A dog")


async def test_a_missing_prompt_is_rejected(demo: Demo) -> None:
    answer = await demo.post("/images/generations", {"model": "demo-image"})
    assert (answer.status, answer.json["error"]["param"]) == (400, "prompt")


def test_partial_images_precede_the_complete_one() -> None:
    events = list(images.events({"prompt": "A cat", "partial_images": 2}, pictures=0, created=1))
    assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    assert len({event["b64_json"] for event in events}) == 3
