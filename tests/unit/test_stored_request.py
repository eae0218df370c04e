"""The stored form of parameters and options: shorter, and restored without any difference."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from responses.models.stored_request import (
    restored_options,
    restored_parameters,
    stored_options,
    stored_parameters,
)
from responses.requests.parameters import hidden_options, public_parameters
from responses.schema import parse_create

_ID = "resp_019aa3c1d2f4aaaaaaaaaaaaaaaaaaaaaaaa"
_AT = datetime(2026, 11, 22, 23, 59, 59, tzinfo=UTC)
_REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "numbers of another type": {"temperature": 1, "top_p": 0.5, "top_logprobs": 3, "max_output_tokens": 1000},
    "zeros": {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0.0},
    "structured": {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"b": 1, "a": 2}}}},
    "reasoning": {"reasoning": {"effort": "high"}, "text": {"verbosity": "low"}},
    "tools": {"tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "none"},
    "texts": {"instructions": "Be brief.", "metadata": {"b": "1", "a": "2"}, "truncation": "auto", "user": "u"},
    "fields that exist only if they were sent": {"prompt_cache_retention": "24h", "store": False},
    "background": {"background": True, "include": ["message.output_text.logprobs"], "stop": ["\n"]},
}


@pytest.mark.parametrize("sent", _REQUESTS.values(), ids=_REQUESTS)
def test_restored_parameters_equal_the_request_byte_for_byte(sent: dict[str, Any]) -> None:
    body = parse_create({"model": "m", "input": "Hello", **sent})
    parameters = public_parameters(body, response_id=_ID, created_at=_AT)
    stored = orjson.loads(orjson.dumps(stored_parameters(parameters)))
    assert orjson.dumps(restored_parameters(stored, response_id=_ID)) == orjson.dumps(parameters)
    # Rows that were written by other code may be complete.
    assert orjson.dumps(restored_parameters(parameters, response_id=_ID)) == orjson.dumps(parameters)


@pytest.mark.parametrize("sent", _REQUESTS.values(), ids=_REQUESTS)
def test_restored_options_equal_the_request(sent: dict[str, Any]) -> None:
    traits = {"structured_output": "checked", "forced_tool_choice": True, "context_window": None}
    options = hidden_options(parse_create({"model": "m", "input": "Hello", **sent}))
    options |= {"traits": traits, "prices": None}
    assert restored_options(stored_options(options)) == options


def test_a_usual_request_stores_only_its_time_and_model() -> None:
    body = parse_create({"model": "m", "input": "Hello"})
    stored = stored_parameters(public_parameters(body, response_id=_ID, created_at=_AT))
    assert stored == {"created_at": int(_AT.timestamp()), "model": "m"}
    assert stored_options(hidden_options(body)) == {}


def test_an_unstored_response_has_no_parameters() -> None:
    assert restored_parameters({}, response_id=_ID) == {}


def test_restored_values_are_not_shared() -> None:
    first = restored_parameters({"model": "m"}, response_id=_ID)
    first["text"]["format"]["type"] = "json_object"
    assert restored_parameters({"model": "m"}, response_id=_ID)["text"]["format"] == {"type": "text"}
