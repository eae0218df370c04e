"""`POST /v1/conversations`."""

import time
from typing import Any

import pytest

from core.crypto import content_cipher
from tests.support.api import Api, error, ok
from tests.support.conversations import begin, ids, items, user_message, words
from tests.support.items import FUNCTION, PIXEL, SAMPLES
from tests.support.upstream import Script

INCLUDE = (
    "message.input_image.image_url,computer_call_output.output.image_url,file_search_call.results,"
    "web_search_call.action.sources,code_interpreter_call.outputs"
)
# Encrypted content that this server did not create.
SEALED = {"cmp_1", "rs_1"}
STORED = {name: item for name, item in SAMPLES.items() if name not in SEALED}


def rejection(api: Api, body: Any) -> tuple[int, str | None, str | None]:
    """Return the error of an invalid request."""
    return error(api.post("/conversations", body))


def test_the_conversation_has_exactly_the_fields_of_the_api(api: Api) -> None:
    created = ok(api.post("/conversations", {"metadata": {"topic": "cats"}}))
    assert created.pop("id").startswith("conv_")
    assert abs(created.pop("created_at") - time.time()) < 30
    assert created == {"object": "conversation", "metadata": {"topic": "cats"}}


@pytest.mark.parametrize("body", [b"", {}, {"items": None, "metadata": None}, {"items": [], "metadata": {}}])
def test_all_parameters_are_optional(api: Api, body: Any) -> None:
    created = ok(api.post("/conversations", body))
    assert created["metadata"] == {}
    assert items(api, created["id"]) == []


def test_items_keep_their_order(api: Api) -> None:
    assert words(api, begin(api, "one", "two", "three")) == ["one", "two", "three"]


@pytest.mark.parametrize("name", STORED)
def test_every_type_of_item_is_accepted(api: Api, name: str) -> None:
    created = ok(api.post("/conversations", {"items": [STORED[name]]}))
    assert items(api, created["id"], include=INCLUDE) == [STORED[name]]


def test_items_dumped_by_the_sdk_with_nulls_are_accepted(api: Api) -> None:
    item = user_message("Hi", phase=None, later=None)
    assert words(api, ok(api.post("/conversations", {"items": [item]}))["id"]) == ["Hi"]


def test_output_items_keep_their_ids(api: Api, script: Script) -> None:
    script.say("So it is.")
    output = api.create(model=script.model, input="Well?")["output"]
    created = ok(api.post("/conversations", {"items": [user_message("Well?"), *output]}))
    assert items(api, created["id"])[1:] == output


def test_a_reference_adds_the_item_of_a_response(api: Api, script: Script) -> None:
    script.say("So it is.")
    output = api.create(model=script.model, input="Well?")["output"]
    created = ok(api.post("/conversations", {"items": [{"id": output[0]["id"]}, user_message("Why?")]}))
    assert items(api, created["id"])[0] == output[0]


def test_a_reference_to_another_teams_item_is_not_found(api: Api, outsider: Api) -> None:
    (theirs,) = ids(outsider, begin(outsider, "secret"))
    answer = api.post("/conversations", {"items": [{"type": "item_reference", "id": theirs}]})
    assert error(answer) == (404, "items", None)
    unknown = api.post("/conversations", {"items": [{"type": "item_reference", "id": "msg_unknown"}]})
    assert answer.text.replace(theirs, "msg_unknown") == unknown.text


def test_duplicate_items_are_rejected(api: Api) -> None:
    twice = [user_message("Hi", id="msg_1"), user_message("Ho", id="msg_1")]
    assert rejection(api, {"items": twice}) == (400, "items", None)


def test_more_than_20_initial_items_are_rejected(api: Api) -> None:
    assert len(items(api, begin(api, *map(str, range(20))))) == 20
    many = [user_message("Hi")] * 21
    assert rejection(api, {"items": many}) == (400, "items", "array_above_max_length")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
        ({"metadata": {"k" * 65: "v"}}, f"metadata.{'k' * 65}", "string_above_max_length"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "object_above_max_properties"),
        ({"name": "x"}, "name", "unknown_parameter"),
        ({"items": "Hi"}, "items", "invalid_type"),
        ({"items": [{"type": "nothing"}]}, "items[0]", "invalid_value"),
        ({"items": [{"role": "user"}]}, "items[0].content", "missing_required_parameter"),
        ({"items": [{"type": "compaction_trigger"}]}, "items[0].type", "unsupported_value"),
        (b"{", None, "invalid_json"),
    ],
)
def test_an_invalid_body_is_rejected_with_param_and_code(api: Api, body: Any, param: str | None, code: str) -> None:
    assert rejection(api, body) == (400, param, code)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "configuration_update", "reasoning": {"effort": "some"}}, "items[1].reasoning.effort"),
        (
            {"type": "additional_tools", "role": "developer", "tools": [{**FUNCTION, "name": 1}]},
            "items[1].tools[0].name",
        ),
    ],
)
def test_items_that_no_response_could_read_are_rejected(api: Api, item: dict[str, Any], param: str) -> None:
    status, at, _ = rejection(api, {"items": [user_message("Hi"), item]})
    assert (status, at) == (400, param)


@pytest.mark.parametrize("name", sorted(SEALED))
def test_foreign_encrypted_content_is_rejected(api: Api, name: str) -> None:
    assert rejection(api, {"items": [SAMPLES[name]]}) == (400, "items", "invalid_encrypted_content")


def test_another_teams_encrypted_content_is_rejected(api: Api, outsider: Api) -> None:
    token = content_cipher().encrypt(b'{"text": "Hm."}', team_id=api.caller.team.pk, purpose="reasoning")
    item = {**SAMPLES["rs_1"], "encrypted_content": token}
    assert ok(api.post("/conversations", {"items": [item]}))["object"] == "conversation"
    assert rejection(outsider, {"items": [item]}) == (400, "items", "invalid_encrypted_content")


def test_a_rejected_request_stores_nothing(api: Api) -> None:
    rejection(api, {"items": [user_message("Hi"), {"type": "item_reference", "id": "msg_unknown"}]})
    assert ok(api.get("/conversations"))["data"] == []


def test_unknown_query_parameters_are_rejected(api: Api) -> None:
    assert error(api.request("POST", "/conversations?include=x", json={})) == (400, "include", "unknown_parameter")


def test_image_data_is_stored_and_included_on_request(api: Api) -> None:
    picture = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    created = ok(api.post("/conversations", {"items": [{"role": "user", "content": [picture]}]}))
    assert items(api, created["id"])[0]["content"][0]["image_url"] is None
    assert items(api, created["id"], include="message.input_image.image_url")[0]["content"][0]["image_url"] == PIXEL
