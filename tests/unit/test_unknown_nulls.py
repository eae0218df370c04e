"""Nulls under unknown keys are ignored, in linear time."""

import time
from typing import Any

import pytest

from core.errors import UnknownParameter
from core.http.nulls import validate_without_nulls
from responses.schema import CreateResponse, parse_create

MANY = 5_000
NAMES = 100
# Validating the whole input again for each name or type would take many times as long.
SECONDS = 1.0


def read(*items: dict[str, Any]) -> list[Any]:
    """Return the parsed input of a request."""
    found = parse_create({"model": "m", "input": list(items)}).input
    assert isinstance(found, list)
    return found


def a_message(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "Hi", **more}


def test_thousands_of_items_may_have_unknown_nulls() -> None:
    assert len(read(*(a_message(phase=None, later=None) for _ in range(MANY)))) == MANY


def test_thousands_of_parts_may_have_unknown_nulls() -> None:
    parts = [{"type": "input_text", "text": "Hi", "later": None} for _ in range(MANY)]
    (message,) = read(a_message(content=parts))
    assert len(message.content) == MANY


def test_each_type_of_object_may_have_different_unknown_nulls() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "later": None, "caller": None}
    part = {"type": "output_text", "text": "Hi", "later": None, "logprobs": None}
    spoken = {"role": "assistant", "content": [part], "later": None, "phase": None}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "", "x": None}]}
    assert len(read(a_message(phase=None), spoken, call, output, a_message(later=None))) == 5


def test_a_null_known_to_another_type_is_kept_there() -> None:
    search = {"type": "tool_search_call", "execution": "server", "arguments": None}
    (_, found) = read(a_message(arguments=None), search)
    assert found.wire()["arguments"] is None


def test_each_item_may_have_a_different_unknown_null() -> None:
    assert len(read(*(a_message(**{f"later_{number}": None}) for number in range(NAMES)))) == NAMES


def test_an_unknown_key_with_a_value_is_rejected_immediately() -> None:
    with pytest.raises(UnknownParameter) as caught:
        read(a_message(later=None), a_message(later=0))
    assert caught.value.param == "input[1].later"


def test_thousands_of_names_before_thousands_of_items_are_removed_in_one_pass() -> None:
    began = time.process_time()
    read(a_message(**{f"later_{number}": None for number in range(MANY)}), *(a_message() for _ in range(MANY)))
    assert time.process_time() - began < SECONDS


def test_new_types_after_thousands_of_items_do_not_cost_a_pass_each() -> None:
    began = time.process_time()
    read(
        *(a_message() for _ in range(9_900)),
        *(a_message(**{f"later_{number}": None}) for number in range(NAMES)),
    )
    assert time.process_time() - began < SECONDS


def test_nulls_of_the_body_are_removed_with_those_in_its_lists() -> None:
    body: dict[str, Any] = {"later": None, "input": [a_message(later=None)]}
    assert validate_without_nulls(CreateResponse, body).model_fields_set == {"input"}


def test_a_null_under_the_second_alias_of_a_field_is_ignored_next_to_the_first() -> None:
    text: dict[str, Any] = {
        "format": {"type": "json_schema", "name": "n", "schema": {}, "schema_": None, "later": None}
    }
    body = parse_create({"model": "m", "input": "Hi", "text": text})
    assert body.text is not None
    assert body.text.format is not None
    assert body.text.format.model_fields_set == {"type", "name", "json_schema"}
