"""Embeddings of the demo upstream: deterministic, of length 1, similar for texts that share words."""

import base64
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.demo_upstream import Demo, talking


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


async def vectors(demo: Demo, *texts: str, **parameters: Any) -> list[Any]:
    """Return the embeddings of texts."""
    answer = await demo.post("/embeddings", {"model": "demo-embedding", "input": texts, **parameters})
    assert [entry["index"] for entry in answer.json["data"]] == list(range(len(texts)))
    return [entry["embedding"] for entry in answer.json["data"]]


def nearness(one: list[float], two: list[float]) -> float:
    return math.sumprod(one, two) if hasattr(math, "sumprod") else sum(a * b for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("text", ["word", "many words of which some are words", "the", "!?", "日本語 テキスト"])
async def test_a_vector_has_256_dimensions_and_length_1(demo: Demo, text: str) -> None:
    (vector,) = await vectors(demo, text)
    assert len(vector) == 256
    assert math.hypot(*vector) == pytest.approx(1)


async def test_texts_that_share_words_are_similar(demo: Demo) -> None:
    question, answer, other = await vectors(
        demo,
        "How do I rotate an API key?",
        "To rotate a key, open the API keys page of your team.",
        "The cafeteria serves soup on Mondays.",
    )
    assert nearness(question, answer) > 0.3
    assert nearness(question, other) < 0.15


async def test_common_words_do_not_make_texts_similar(demo: Demo) -> None:
    one, two = await vectors(demo, "what is the whale", "what is the weather")
    assert nearness(one, two) < 0.2


async def test_the_same_text_has_the_same_vector_in_any_case(demo: Demo) -> None:
    one, two = await vectors(demo, "Blue Whale", "blue whale")
    assert one == two


async def test_words_that_cancel_each_other_out_have_a_non_zero_vector(demo: Demo) -> None:
    texts = [f"alpha word{number}" for number in range(8)]
    assert {abs(vector[0]) for vector in await vectors(demo, *texts, dimensions=1)} == {1.0}


async def test_vectors_can_be_encoded_in_base64(demo: Demo) -> None:
    (plain,) = await vectors(demo, "blue whale", dimensions=8)
    (encoded,) = await vectors(demo, "blue whale", dimensions=8, encoding_format="base64")
    assert struct.unpack("<8f", base64.b64decode(encoded)) == pytest.approx(plain)


async def test_a_single_text_is_accepted_and_its_words_are_counted(demo: Demo) -> None:
    answer = await demo.post("/embeddings", {"model": "demo-embedding", "input": "one two three", "user": "me"})
    assert answer.json["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert answer.json["model"] == "demo-embedding"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"input": ""}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": [1, 2]}, "input[0]"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "other": 1}, "other"),
    ],
)
async def test_an_error_names_the_invalid_parameter(demo: Demo, parameters: dict[str, Any], param: str) -> None:
    answer = await demo.post("/embeddings", {"model": "demo-embedding", **parameters})
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_an_unknown_model_is_rejected(demo: Demo) -> None:
    answer = await demo.post("/embeddings", {"model": "text-embedding-3-small", "input": "a"})
    assert answer.json["error"]["code"] == "model_not_found"
