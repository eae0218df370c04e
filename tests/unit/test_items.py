"""The closed union of items: each type is read back as it was written, from JSON and from the SDK's own objects."""

from typing import Any, get_args

import pytest
from openai.types.responses import ResponseItem
from pydantic import BaseModel, TypeAdapter, ValidationError

from conversations.items import InputItem, StoredItem, from_wire, plain_text
from kernel.validation import first_defect
from tests.support.items import PIXEL, SAMPLES

READ: TypeAdapter[Any] = TypeAdapter(list[InputItem])
# Stored without id, these would answer nothing.
NEED_THEIR_ID = {"local_shell_call_output"}

every_item = pytest.mark.parametrize("item", SAMPLES.values(), ids=SAMPLES)


def read(item: dict[str, Any]) -> Any:
    """An item of a request."""
    (found,) = READ.validate_python([item])
    return found


def sdk_object(item: dict[str, Any]) -> BaseModel:
    """The item as the SDK's own type."""
    for cls in get_args(get_args(ResponseItem)[0]):
        kinds, roles = (
            get_args(cls.model_fields[name].annotation) if name in cls.model_fields else () for name in ("type", "role")
        )
        if item["type"] in kinds and (not roles or item["role"] in roles):
            found: BaseModel = cls.model_validate(item)
            return found
    raise LookupError(item["type"])


def without_nulls_of_tools(body: dict[str, Any]) -> dict[str, Any]:
    """Definitions of tools are kept as they came; whoever offers them reads their nulls."""
    if body["type"] not in {"additional_tools", "tool_search_output"}:
        return body
    return {**body, "tools": [{k: v for k, v in tool.items() if v is not None} for tool in body["tools"]]}


def shortest(item: dict[str, Any]) -> dict[str, Any]:
    """The item without any key that it may leave out."""
    wanted = {name for name, field in type(read(item)).model_fields.items() if field.is_required()}
    # One of two: a configuration update says something.
    return {key: value for key, value in item.items() if key in {*wanted, "type", "role"} or item["id"] == "cfg_1"}


def refused(item: dict[str, Any]) -> tuple[str | None, str | None, str]:
    """Param, code and message of an item that is refused."""
    with pytest.raises(ValidationError) as caught:
        read(item)
    defect = first_defect(caught.value, prefix="input")
    return defect.param, defect.code, defect.message


def test_there_is_a_sample_of_every_item_that_is_stored() -> None:
    assert {item["type"] for item in SAMPLES.values()} == {
        cls.model_fields["type"].default for cls in get_args(StoredItem)
    }
    assert len({item["type"] for item in SAMPLES.values()}) == 29


@every_item
def test_it_shows_an_item_as_it_was_given(item: dict[str, Any]) -> None:
    assert read(item).wire() == item
    assert from_wire(item).wire() == item


@every_item
@pytest.mark.parametrize("by_alias", [False, True])
def test_it_takes_the_dumps_of_the_sdk(item: dict[str, Any], by_alias: bool) -> None:
    dumped = sdk_object(item).model_dump(by_alias=by_alias)
    assert without_nulls_of_tools(read(dumped).wire()) == item


@every_item
def test_it_takes_items_of_which_only_the_required_keys_are_set(item: dict[str, Any]) -> None:
    bare = shortest(item)
    body = read(bare).with_id()
    assert sdk_object(body).model_dump()["id"] == body["id"]
    assert {key for key, value in body.items() if value is not None} <= {*bare, "id", "status", "execution", "summary"}
    assert body["id"].split("_")[0] == item["id"].split("_")[0]


@every_item
def test_null_stands_for_what_is_not_known(item: dict[str, Any]) -> None:
    """Every key that the SDK's type may leave open is null in a dump of an object that never had it."""
    cls = type(sdk_object(item))
    open_keys = {field.alias or name for name, field in cls.model_fields.items() if not field.is_required()}
    # An output that answers no call, and an update that says nothing, are no items.
    open_keys -= {"call_id"} if item["type"] == "function_call_output" else {"text"}
    nulls = {key: None if key in open_keys else value for key, value in item.items()}
    shown = read(nulls).wire()
    assert from_wire(shown).wire() == shown
    assert sdk_object(shown).model_dump()["id"] == item["id"]


@pytest.mark.parametrize("item", [item for item in SAMPLES.values() if item["type"] not in NEED_THEIR_ID])
def test_items_without_an_id_get_one_of_their_kind(item: dict[str, Any]) -> None:
    prefix = item["id"].split("_")[0]
    assert read({key: value for key, value in item.items() if key != "id"}).with_id()["id"].startswith(f"{prefix}_")


def test_ids_are_whatever_the_client_calls_its_items() -> None:
    assert read({**SAMPLES["fc_1"], "id": "anything"}).wire()["id"] == "anything"


def test_a_string_of_a_message_is_a_part() -> None:
    assert read({"role": "user", "content": "Hi"}).wire()["content"] == [{"type": "input_text", "text": "Hi"}]
    (part,) = read({"role": "assistant", "content": "Hi"}).wire()["content"]
    assert part == {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}


@pytest.mark.parametrize(
    "item", [{"id": "msg_1"}, {"id": "msg_1", "type": "item_reference"}, {"id": "a", "type": None}]
)
def test_an_id_alone_is_a_reference(item: dict[str, Any]) -> None:
    assert type(read(item)).__name__ == "ItemReference"


def test_a_message_may_say_that_it_has_no_type() -> None:
    for role in ("user", "assistant"):
        assert read({"role": role, "content": "Hi", "type": None}).wire()["type"] == "message"


def test_it_names_the_types_that_it_knows() -> None:
    param, code, message = refused({"type": "telepathy"})
    assert (param, code) == ("input[0]", "invalid_value")
    assert message.startswith("Invalid value: 'telepathy'. Supported values are: 'message', 'reasoning', ")
    assert message.endswith(", 'compaction_trigger', and 'item_reference'.")


IMAGE = {"type": "input_image"}
FILE = {"type": "input_file"}


def said(part: dict[str, Any]) -> dict[str, Any]:
    """A message of the user with one part."""
    return {"role": "user", "content": [part]}


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ({"content": "Hi"}, "input[0]", "invalid_value"),
        ({"role": "user"}, "input[0].content", "missing_required_parameter"),
        ({"role": "tool", "content": "Hi"}, "input[0].role", "invalid_value"),
        ({"role": "user", "content": "Hi", "phase": "commentary"}, "input[0].phase", "unknown_parameter"),
        ({**SAMPLES["fc_1"], "more": 1}, "input[0].more", "unknown_parameter"),
        ({**SAMPLES["fc_1"], "call_id": "c" * 65}, "input[0].call_id", "string_above_max_length"),
        ({**SAMPLES["fc_1"], "caller": {"type": "nobody"}}, "input[0].caller", "invalid_value"),
        ({**SAMPLES["sh_1"], "status": "failed"}, "input[0].status", "invalid_value"),
        ({**SAMPLES["sh_1"], "environment": {"type": "moon"}}, "input[0].environment", "invalid_value"),
        ({**SAMPLES["cu_1"], "actions": [{"type": "fly"}]}, "input[0].actions[0]", "invalid_value"),
        ({**SAMPLES["ws_1"], "action": {"type": "guess"}}, "input[0].action", "invalid_value"),
        ({**SAMPLES["mcp_1"], "error": "boom"}, "input[0].error", "invalid_type"),
        ({"type": "local_shell_call_output", "output": ""}, "input[0].id", "missing_required_parameter"),
        ({"type": "configuration_update"}, "input[0]", "invalid_value"),
        (said({"type": "input_audio", "data": "", "format": "mp3"}), "input[0].content[0]", "invalid_value"),
        (said({"type": "input_video", "video_url": "https://a"}), "input[0].content[0]", "invalid_value"),
        (said({"type": "output_text", "text": "Hi"}), "input[0].content[0]", "invalid_value"),
        (said(IMAGE), "input[0].content[0]", "invalid_value"),
        (said({**IMAGE, "image_url": PIXEL, "file_id": "file-1"}), "input[0].content[0]", "invalid_value"),
        (said(FILE), "input[0].content[0]", "invalid_value"),
        (said({**FILE, "file_url": "https://a", "file_data": "aGk="}), "input[0].content[0]", "invalid_value"),
        (said({**FILE, "file_data": "a", "detail": "original"}), "input[0].content[0].detail", "invalid_value"),
        (said({**IMAGE, "file_id": ""}), "input[0].content[0].file_id", "empty_string"),
    ],
)
def test_it_names_the_defect_of_an_item(item: dict[str, Any], param: str, code: str) -> None:
    assert refused(item)[:2] == (param, code)


def test_it_says_which_sources_a_part_has_too_many_of() -> None:
    part = {**FILE, "file_id": "file-1", "file_url": "https://a"}
    sentence = "exactly one of 'file_id', 'file_url' and 'file_data' must be given, but 2 are."
    assert refused(said(part))[2] == f"Invalid 'input[0].content[0]': {sentence}"


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
def test_it_finds_the_words_of_an_item(name: str) -> None:
    assert plain_text(SAMPLES[name]) == WORDS[name]


@every_item
def test_every_item_has_words_or_none(item: dict[str, Any]) -> None:
    assert isinstance(plain_text(read(shortest(item)).wire()), str)
    assert isinstance(plain_text(item), str)
