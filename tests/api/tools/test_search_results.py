"""Attributes in the results of file searches: strings, numbers or booleans."""

from tests.support.api import Api, error
from tests.support.upstream import Script

USER = {"role": "user", "content": "Hi"}


def test_an_invalid_attribute_is_named_by_its_path(api: Api, script: Script) -> None:
    result = {"file_id": "file-1", "attributes": {"a": "b", "b": True, "i": 1, "f": 1.5, "x": ["none"]}}
    call = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a"], "results": [result]}
    answer = api.post("/responses", {"model": script.model, "input": [call, USER]})
    assert error(answer) == (400, "input[0].results[0].attributes.x", "invalid_type")


def test_attributes_keep_their_types(api: Api, script: Script) -> None:
    attributes = {"a": "b", "b": True, "i": 1, "f": 1.5}
    call = {
        "type": "file_search_call",
        "id": "fs_1",
        "status": "completed",
        "queries": ["a"],
        "results": [{"file_id": "file-1", "attributes": attributes}],
    }
    response = api.create(model=script.say("Hello").model, input=[call, USER])
    (kept, _) = api.input_items(response["id"], include=["file_search_call.results"])
    found = kept["results"][0]["attributes"]
    assert found == attributes
    assert {name: type(value) for name, value in found.items()} == {"a": str, "b": bool, "i": int, "f": float}
