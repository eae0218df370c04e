"""Bodies with very many defects are validated quickly, because validation blocks other requests."""

import time
from typing import Any

import orjson
import pytest

from core.errors import BadRequest
from core.http.validation import MAX_KEYS, parse_json
from responses.schema import parse_create

MANY = 100_000
# Reporting every defect would take many times as long.
SECONDS = 1.0


def defect(*items: dict[str, Any]) -> BadRequest:
    """Return the defect of an input, and assert that it is found in time."""
    began = time.process_time()
    with pytest.raises(BadRequest) as caught:
        parse_create({"model": "m", "input": list(items)})
    assert time.process_time() - began < SECONDS
    return caught.value


def a_message(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "Hi", **more}


def test_only_the_first_defect_of_a_nested_list_is_reported() -> None:
    part = {"type": "output_text", "text": "Hi", "annotations": [0] * MANY}
    found = defect({"role": "assistant", "content": [part]})
    assert found.param == "input[0].content[0].annotations[0]"


def test_only_the_first_defect_of_a_map_is_reported() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {f"name_{number}": 0 for number in range(MANY)}}
    found = defect({"type": "local_shell_call", "call_id": "c", "action": action})
    assert found.param == "input[0].action.env.name_0"


def test_the_number_of_unknown_keys_of_an_object_is_limited() -> None:
    keys = {f"name_{number}": 1 for number in range(MAX_KEYS + 1)}
    with pytest.raises(BadRequest, match="more than 10000 keys"):
        parse_json(orjson.dumps({"input": [{"parts": [a_message(), a_message(**keys)]}]}))


def test_many_small_objects_may_have_many_keys_in_total() -> None:
    body = {"input": [a_message() for _ in range(MAX_KEYS)]}
    assert parse_json(orjson.dumps(body)) == body
