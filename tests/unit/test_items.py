"""The closed union of items: parsing and serialization of every type, from JSON and from objects of the SDK."""

from typing import Any, get_args

import pytest
from openai.types.responses import ResponseItem
from pydantic import BaseModel, TypeAdapter, ValidationError

from conversations.items import (
    MAX_TEXT,
    AssistantMessage,
    InputItem,
    OutputText,
    StoredItem,
    from_wire,
    plain_text,
    readable_items,
)
from core.http.validation import first_defect
from tests.support.items import PIXEL, SAMPLES

READ: TypeAdapter[Any] = TypeAdapter(list[InputItem])
# Stored without an id, these would match no call.
NEED_THEIR_ID = {"local_shell_call_output"}

every_item = pytest.mark.parametrize("item", SAMPLES.values(), ids=SAMPLES)


# Their values are stored unchanged, or as JSON of any shape.
OPAQUE = {"tools", "logprobs", "reasoning", "text", "input_schema", "arguments"}


def read(item: dict[str, Any]) -> Any:
    """Parse an item of a request."""
    (found,) = READ.validate_python([item])
    return found


def sdk_object(item: dict[str, Any]) -> BaseModel:
    """Return the item as an object of the SDK."""
    for cls in get_args(get_args(ResponseItem)[0]):
        kinds, roles = (
            get_args(cls.model_fields[name].annotation) if name in cls.model_fields else () for name in ("type", "role")
        )
        if item["type"] in kinds and (not roles or item["role"] in roles):
            found: BaseModel = cls.model_validate(item)
            return found
    raise LookupError(item["type"])


def without_nulls_of_tools(body: dict[str, Any]) -> dict[str, Any]:
    """Remove nulls from tool definitions, which are stored as the client sent them."""
    if body["type"] not in {"additional_tools", "tool_search_output"}:
        return body
    return {**body, "tools": [{k: v for k, v in tool.items() if v is not None} for tool in body["tools"]]}


def required_only(item: dict[str, Any]) -> dict[str, Any]:
    """Return the item with only its required keys."""
    required = {name for name, field in type(read(item)).model_fields.items() if field.is_required()}
    # A configuration update needs one of its two optional keys.
    return {key: value for key, value in item.items() if key in {*required, "type", "role"} or item["id"] == "cfg_1"}


def rejection(item: dict[str, Any]) -> tuple[str | None, str | None, str]:
    """Return param, code and message of the error for an invalid item."""
    with pytest.raises(ValidationError) as caught:
        read(item)
    defect = first_defect(caught.value, prefix="input")
    return defect.param, defect.code, defect.message


def test_every_stored_item_type_has_a_sample() -> None:
    assert {item["type"] for item in SAMPLES.values()} == {
        cls.model_fields["type"].default for cls in get_args(StoredItem)
    }
    assert len({item["type"] for item in SAMPLES.values()}) == 29


@every_item
def test_an_item_is_returned_as_it_was_sent(item: dict[str, Any]) -> None:
    assert read(item).wire() == item
    assert from_wire(item).wire() == item


def with_additional_fields(value: Any) -> Any:
    """Return JSON with a further field in each object that has a type, except definitions of tools."""
    match value:
        case list():
            return [with_additional_fields(entry) for entry in value]
        case {"type": _}:
            parts = {name: part if name in OPAQUE else with_additional_fields(part) for name, part in value.items()}
            return {**parts, "later": {"a": [1, None]}}
    return value


@every_item
def test_additional_fields_of_an_item_with_an_id_are_kept(item: dict[str, Any]) -> None:
    newer = with_additional_fields(item)
    assert read(newer).wire() == newer
    assert from_wire(newer).wire() == newer


@pytest.mark.parametrize("name", ["msg_2", "rs_1", "fc_1", "ctc_1", "ws_1", "mcp_1"])
def test_additional_fields_of_items_that_only_servers_make_are_kept_without_an_id(name: str) -> None:
    newer = with_additional_fields(without_id(name))
    assert {**read(newer).wire(), "id": None} == {**newer, "id": None}


def test_additional_nulls_are_ignored() -> None:
    assert read({**SAMPLES["fc_1"], "later": None}).wire() == SAMPLES["fc_1"]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_message_of_any_role_may_have_a_phase(role: str) -> None:
    assert read({"role": role, "content": "Hi", "phase": "commentary"}).wire()["phase"] == "commentary"


def test_a_tool_list_has_no_nulls_of_its_own() -> None:
    shown = read({**SAMPLES["mcpl_1"], "error": None, "tools": [{"name": "ask", "input_schema": {"a": None}}]}).wire()
    assert "error" not in shown
    assert shown["tools"] == [{"name": "ask", "input_schema": {"a": None}}]


@every_item
@pytest.mark.parametrize("by_alias", [False, True])
def test_dumps_of_the_sdk_are_accepted(item: dict[str, Any], by_alias: bool) -> None:
    dumped = sdk_object(item).model_dump(by_alias=by_alias)
    assert without_nulls_of_tools(read(dumped).wire()) == item


@every_item
def test_items_with_only_required_keys_are_accepted(item: dict[str, Any]) -> None:
    bare = required_only(item)
    body = read(bare).with_id()
    assert sdk_object(body).model_dump()["id"] == body["id"]
    assert {key for key, value in body.items() if value not in (None, "")} <= {
        *bare,
        "id",
        "status",
        "execution",
        "summary",
    }
    assert body["id"].split("_")[0] == item["id"].split("_")[0]


@every_item
def test_null_is_accepted_for_optional_keys(item: dict[str, Any]) -> None:
    # The SDK dumps every optional key that was not set as null.
    cls = type(sdk_object(item))
    open_keys = {field.alias or name for name, field in cls.model_fields.items() if not field.is_required()}
    # An output without its call id and an update without any setting are not valid items.
    open_keys -= {"call_id"} if item["type"] == "function_call_output" else {"text"}
    nulls = {key: None if key in open_keys else value for key, value in item.items()}
    shown = read(nulls).wire()
    assert from_wire(shown).wire() == shown
    assert sdk_object(shown).model_dump()["id"] == item["id"]


@pytest.mark.parametrize("item", [item for item in SAMPLES.values() if item["type"] not in NEED_THEIR_ID])
def test_an_item_without_id_gets_one_with_its_prefix(item: dict[str, Any]) -> None:
    prefix = item["id"].split("_")[0]
    assert read({key: value for key, value in item.items() if key != "id"}).with_id()["id"].startswith(f"{prefix}_")


def test_any_id_of_the_client_is_kept() -> None:
    assert read({**SAMPLES["fc_1"], "id": "anything"}).wire()["id"] == "anything"


def test_string_content_becomes_a_text_part() -> None:
    assert read({"role": "user", "content": "Hi"}).wire()["content"] == [{"type": "input_text", "text": "Hi"}]
    (part,) = read({"role": "assistant", "content": "Hi"}).wire()["content"]
    assert part == {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}


@pytest.mark.parametrize(
    "item", [{"id": "msg_1"}, {"id": "msg_1", "type": "item_reference"}, {"id": "a", "type": None}]
)
def test_an_id_alone_is_a_reference(item: dict[str, Any]) -> None:
    assert type(read(item)).__name__ == "ItemReference"


def test_a_message_type_may_be_null() -> None:
    for role in ("user", "assistant"):
        assert read({"role": role, "content": "Hi", "type": None}).wire()["type"] == "message"


def test_an_unknown_type_is_rejected_with_the_known_ones() -> None:
    param, code, message = rejection({"type": "telepathy"})
    assert (param, code) == ("input[0]", "invalid_value")
    assert message.startswith("Invalid value: 'telepathy'. Supported values are: 'message', 'reasoning', ")
    assert message.endswith(", 'compaction_trigger', and 'item_reference'.")


UNKNOWN = "unknown_parameter"
IMAGE = {"type": "input_image"}
FILE = {"type": "input_file"}


def without_id(name: str) -> dict[str, Any]:
    """Return a sample as a client writes it."""
    return {key: value for key, value in SAMPLES[name].items() if key != "id"}


def user_message(part: dict[str, Any]) -> dict[str, Any]:
    """Return a user message with one part."""
    return {"role": "user", "content": [part]}


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ({"content": "Hi"}, "input[0]", "invalid_value"),
        ({"role": "user"}, "input[0].content", "missing_required_parameter"),
        ({"role": "tool", "content": "Hi"}, "input[0].role", "invalid_value"),
        ({"role": "user", "content": "Hi", "phase": "later"}, "input[0].phase", "invalid_value"),
        ({"role": "user", "content": "Hi", "more": 1}, "input[0].more", "unknown_parameter"),
        ({"role": "user", "more": 1}, "input[0].content", "missing_required_parameter"),
        ({**without_id("fco_1"), "more": 1}, "input[0].more", "unknown_parameter"),
        ({**without_id("cuo_1"), "output": {**SAMPLES["cuo_1"]["output"], "more": 1}}, "input[0].output.more", UNKNOWN),
        ({**SAMPLES["fc_1"], "call_id": "c" * 65}, "input[0].call_id", "string_above_max_length"),
        ({**SAMPLES["fc_1"], "caller": {"type": "nobody"}}, "input[0].caller", "invalid_value"),
        ({**SAMPLES["sh_1"], "status": "failed"}, "input[0].status", "invalid_value"),
        ({**SAMPLES["sh_1"], "environment": {"type": "moon"}}, "input[0].environment", "invalid_value"),
        ({**SAMPLES["cu_1"], "actions": [{"type": "fly"}]}, "input[0].actions[0]", "invalid_value"),
        ({**SAMPLES["ws_1"], "action": {"type": "guess"}}, "input[0].action", "invalid_value"),
        ({**SAMPLES["mcp_1"], "error": "boom"}, "input[0].error", "invalid_type"),
        ({"type": "local_shell_call_output", "output": ""}, "input[0].id", "missing_required_parameter"),
        ({"type": "configuration_update"}, "input[0]", "invalid_value"),
        (user_message({"type": "input_audio", "data": "", "format": "mp3"}), "input[0].content[0]", "invalid_value"),
        (user_message({"type": "input_video", "video_url": "https://a"}), "input[0].content[0]", "invalid_value"),
        (user_message({"type": "output_text", "text": "Hi"}), "input[0].content[0]", "invalid_value"),
        (user_message({"type": "input_text", "text": "Hi", "more": 1}), "input[0].content[0].more", UNKNOWN),
        (user_message(IMAGE), "input[0].content[0]", "invalid_value"),
        (user_message({**IMAGE, "image_url": PIXEL, "file_id": "file-1"}), "input[0].content[0]", "invalid_value"),
        (user_message(FILE), "input[0].content[0]", "invalid_value"),
        (user_message({**FILE, "file_url": "https://a", "file_data": "aGk="}), "input[0].content[0]", "invalid_value"),
        (user_message({**FILE, "file_data": "a", "detail": "original"}), "input[0].content[0].detail", "invalid_value"),
        (user_message({**IMAGE, "file_id": ""}), "input[0].content[0].file_id", "invalid_value"),
    ],
)
def test_an_invalid_item_is_rejected_with_param_and_code(item: dict[str, Any], param: str, code: str) -> None:
    assert rejection(item)[:2] == (param, code)


def test_a_part_with_several_sources_is_rejected() -> None:
    part = {**FILE, "file_id": "file-1", "file_url": "https://a"}
    sentence = "exactly one of 'file_id', 'file_url' and 'file_data' must be given, but 2 are."
    assert rejection(user_message(part))[2] == f"Invalid 'input[0].content[0]': {sentence}"


WORDS = {
    "msg_1": "Hi",
    "msg_2": "HelloNo.",
    "rs_1": "Hm.",
    "fc_1": '{"at": "it"}',
    "fco_1": "a cat",
    "ctc_1": "SELECT 1",
    "ctco_1": "1",
    "tsc_1": '{"query":"eyes"}',
    "cuo_1": "",
    "sh_1": "ls\npwd",
    "sho_1": "a\nb",
    "lsh_1": "ls -l",
    "call_5": '{"stdout": "a"}',
    "apc_1": "a.py\n+1",
    "apco_1": "No such file",
    "mcpr_1": "{}",
    "mcpa_1": "No.",
    "fs_1": "cats\nMeow.",
    "ws_1": "cats\ndogs",
    "ci_1": "print(1)\n1",
    "ig_1": "A cat.",
    "prog_1": "look()",
    "progo_1": "a cat",
    "cmp_1": "",
}


@pytest.mark.parametrize("name", WORDS)
def test_the_plain_text_of_an_item_is_extracted(name: str) -> None:
    assert plain_text(SAMPLES[name]) == WORDS[name]


@every_item
def test_plain_text_is_defined_for_every_item(item: dict[str, Any]) -> None:
    assert isinstance(plain_text(read(required_only(item)).wire()), str)
    assert isinstance(plain_text(item), str)


def test_a_stored_text_that_is_longer_than_requests_allow_is_read_up_to_the_limit() -> None:
    part = {"type": "output_text", "text": "x" * (MAX_TEXT + 5), "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    (item,) = readable_items([message, {"id": "x_1", "type": "nonsense"}])
    assert isinstance(item, AssistantMessage)
    assert [len(part.text) for part in item.parts() if isinstance(part, OutputText)] == [MAX_TEXT]
