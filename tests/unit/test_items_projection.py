"""Projection of stored items, without and with `include`."""

from typing import Any

import pytest

from conversations.items import INCLUDABLE, project
from tests.support.items import PIXEL, SAMPLES

NOTHING: frozenset[str] = frozenset()
IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "status": "completed", "role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("name", "include", "hidden"),
    [
        ("fs_1", "file_search_call.results", {"results": None}),
        ("ci_1", "code_interpreter_call.outputs", {"outputs": None}),
        (
            "ws_1",
            "web_search_call.action.sources",
            {"action": {"type": "search", "query": "cats", "queries": ["cats", "dogs"]}},
        ),
        (
            "cuo_1",
            "computer_call_output.output.image_url",
            {"output": {"type": "computer_screenshot", "file_id": "file-1"}},
        ),
    ],
)
def test_a_field_is_shown_only_on_request(name: str, include: str, hidden: dict[str, Any]) -> None:
    stored = SAMPLES[name]
    assert project(stored, NOTHING) == {**stored, **hidden}
    assert project(stored, frozenset(INCLUDABLE) - {include, "web_search_call.results"}) == {**stored, **hidden}
    assert project(stored, frozenset({include})) == stored


@pytest.mark.parametrize("name", ["function_call_output", "custom_tool_call_output"])
def test_images_in_outputs_are_shown_only_on_request(name: str) -> None:
    stored = {"id": "x", "type": name, "status": "completed", "call_id": "c", "output": [IMAGE]}
    assert project(stored, NOTHING)["output"] == [{**IMAGE, "image_url": None}]
    assert project(stored, frozenset({"message.input_image.image_url"})) == stored


def test_only_image_data_is_left_out() -> None:
    linked = {**IMAGE, "image_url": "https://example.com/a.png"}
    filed = {"type": "input_image", "file_id": "file-1", "detail": "auto"}
    text = {"type": "input_text", "text": "Hi"}
    shown = project(message(text, IMAGE, linked, filed), NOTHING)
    assert shown == message(text, {**IMAGE, "image_url": None}, linked, filed)


def test_projection_does_not_change_the_stored_item() -> None:
    stored = message(IMAGE)
    project(stored, NOTHING)
    assert stored == message(IMAGE)


@pytest.mark.parametrize("name", ["msg_2", "rs_1", "fc_1", "ctco_1", "mcp_1", "sho_1", "ig_1", "cmp_1"])
def test_other_items_are_shown_completely(name: str) -> None:
    assert project(SAMPLES[name], NOTHING) is SAMPLES[name]
