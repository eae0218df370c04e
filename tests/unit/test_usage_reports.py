"""Usage as upstreams report it, each in its own words."""

from typing import Any

import pytest

from responses.engine.converter.base import read_usage


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
        ({"prompt_tokens_details": {"cached_tokens": "many", "audio_tokens": None}}, {}),
    ],
)  # fmt: skip
def test_usage_is_read_in_the_words_of_the_upstream(reported: dict[str, Any], expected: dict[str, int]) -> None:
    used = read_usage({"prompt_tokens": 10, "completion_tokens": 20, **reported})
    numbers = {name: getattr(used, name) for name in used.__slots__ if getattr(used, name)}
    assert numbers == {"input_tokens": 10, "output_tokens": 20, **expected}
