"""Usage reports of upstreams, with the field names of each API."""

from dataclasses import asdict
from typing import Any

import pytest

from engine.converter.base import later_usage, read_usage, reported_usage


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        # OpenAI
        ({"prompt_tokens_details": {"cached_tokens": 7}}, {"cached_tokens": 7}),
        ({"prompt_tokens_details": {"audio_tokens": 6, "cached_tokens": 0}}, {"input_audio_tokens": 6}),
        (
            {"prompt_tokens_details": {"cached_tokens": 5, "cached_tokens_details": {"audio_tokens": 4}}},
            {"cached_tokens": 5, "cached_audio_tokens": 4},
        ),
        ({"completion_tokens_details": {"audio_tokens": 3, "reasoning_tokens": 2}},
         {"output_audio_tokens": 3, "reasoning_tokens": 2}),
        # DeepSeek, Moonshot
        ({"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2}, {"cached_tokens": 8}),
        ({"cached_tokens": 8}, {"cached_tokens": 8}),
        # Gateways to Claude
        (
            {
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 5,
                "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3},
            },
            {"cached_tokens": 4, "cache_write_tokens": 5, "cache_write_1h_tokens": 3},
        ),
        # xAI counts reasoning beside the completion.
        (
            {"total_tokens": 36, "completion_tokens_details": {"reasoning_tokens": 6}},
            {"output_tokens": 26, "reasoning_tokens": 6},
        ),
        ({"total_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 6}}, {"reasoning_tokens": 6}),
        # Gemini counts reasoning only in the total.
        ({"total_tokens": 36}, {"output_tokens": 26}),
        ({"total_tokens": 36, "completion_tokens": 0}, {"output_tokens": 26}),
        # The total includes cached input that the prompt does not.
        ({"total_tokens": 34, "cache_read_input_tokens": 4}, {"input_tokens": 14, "cached_tokens": 4}),
        # Embeddings have no output.
        ({"total_tokens": 12, "completion_tokens": None}, {"input_tokens": 12, "output_tokens": 0}),
        ({"prompt_tokens_details": {"cached_tokens": "many", "audio_tokens": None}}, {}),
    ],
)  # fmt: skip
def test_usage_is_read_with_the_field_names_of_the_upstream(reported: dict[str, Any], expected: dict[str, int]) -> None:
    used = read_usage({"prompt_tokens": 10, "completion_tokens": 20, **reported})
    numbers = {name: number for name, number in asdict(used).items() if number}
    expected = {"input_tokens": 10, "output_tokens": 20, **expected}
    assert numbers == {name: number for name, number in expected.items() if number}


@pytest.mark.parametrize(
    "reported",
    [
        {"input_tokens": 10, "output_tokens": 20},
        {"prompt_tokens": "10", "completion_tokens": "20"},
        {"prompt_tokens": 10.0, "completion_tokens": 20.0},
        {"prompt_tokens": None, "completion_tokens": 0, "input_tokens": 10, "output_tokens": 20},
        {"input_tokens": 10, "completion_tokens": 20, "prompt_tokens_details": [1], "cache_creation": "x"},
        {"output_tokens": 20, "total_tokens": 30},
        {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": -5},
    ],
)
def test_token_counts_are_read_with_the_names_of_both_apis(reported: dict[str, Any]) -> None:
    for names in ({}, {"read": "input", "written": "output"}):
        used = read_usage(reported, **names)
        assert (used.input_tokens, used.output_tokens) == (10, 20)


def test_token_details_are_read_with_the_names_of_both_apis() -> None:
    details = {"input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 5}}
    used = read_usage({"input_tokens": 10, "output_tokens": 20, **details})
    assert (used.cached_tokens, used.reasoning_tokens) == (4, 5)


@pytest.mark.parametrize("number", [None, 0, -1, 2**40, True, "many", [], float("nan"), float("inf")])
def test_usage_without_valid_numbers_counts_as_missing(number: Any) -> None:
    assert reported_usage({"prompt_tokens": number, "completion_tokens": number, "total_tokens": number}) is None


def test_later_numbers_replace_earlier_ones() -> None:
    first = later_usage(None, {"input_tokens": 10, "output_tokens": 1})
    assert later_usage(first, None) == later_usage(first, {"prompt_tokens": None}) == later_usage(first, [1]) == first
    last = later_usage(first, {"output_tokens": 20})
    assert last is not None
    assert (last.input_tokens, last.output_tokens) == (10, 20)
