"""`POST /v1/conversations`."""

import time
from typing import Any

import pytest

from kernel.crypto import content_cipher
from tests.support.api import Api, error, ok
from tests.support.conversations import begin, ids, items, said, words
from tests.support.items import FUNCTION, PIXEL, SAMPLES
from tests.support.upstream import Script

INCLUDE = (
    "message.input_image.image_url,computer_call_output.output.image_url,file_search_call.results,"
    "web_search_call.action.sources,code_interpreter_call.outputs"
)
# What only the server that sealed it can read.
SEALED = {"cmp_1", "rs_1"}
STORED = {name: item for name, item in SAMPLES.items() if name not in SEALED}


def refused(api: Api, body: Any) -> tuple[int, str | None, str | None]:
    """The error of a conversation that cannot be made."""
    return error(api.post("/conversations", body))


def test_it_is_exactly_what_the_wire_has(api: Api) -> None:
    made = ok(api.post("/conversations", {"metadata": {"topic": "cats"}}))
    assert made.pop("id").startswith("conv_")
    assert abs(made.pop("created_at") - time.time()) < 30
    assert made == {"object": "conversation", "metadata": {"topic": "cats"}}


@pytest.mark.parametrize("body", [b"", {}, {"items": None, "metadata": None}, {"items": [], "metadata": {}}])
def test_it_needs_nothing(api: Api, body: Any) -> None:
    made = ok(api.post("/conversations", body))
    assert made["metadata"] == {}
    assert items(api, made["id"]) == []


def test_items_stand_in_the_order_in_which_they_were_given(api: Api) -> None:
    assert words(api, begin(api, "one", "two", "three")) == ["one", "two", "three"]


@pytest.mark.parametrize("name", STORED)
def test_every_item_can_stand_in_it(api: Api, name: str) -> None:
    made = ok(api.post("/conversations", {"items": [STORED[name]]}))
    assert items(api, made["id"], include=INCLUDE) == [STORED[name]]


def test_it_takes_what_the_sdk_dumps_with_all_its_nulls(api: Api) -> None:
    item = said("Hi", phase=None, later=None)
    assert words(api, ok(api.post("/conversations", {"items": [item]}))["id"]) == ["Hi"]


def test_it_takes_the_output_of_a_response_and_keeps_its_ids(api: Api, script: Script) -> None:
    script.say("So it is.")
    output = api.create(model=script.model, input="Well?")["output"]
    made = ok(api.post("/conversations", {"items": [said("Well?"), *output]}))
    assert items(api, made["id"])[1:] == output


def test_a_reference_places_the_item_of_a_response(api: Api, script: Script) -> None:
    script.say("So it is.")
    output = api.create(model=script.model, input="Well?")["output"]
    made = ok(api.post("/conversations", {"items": [{"id": output[0]["id"]}, said("Why?")]}))
    assert items(api, made["id"])[0] == output[0]


def test_a_reference_to_an_item_of_another_team_is_one_to_nothing(api: Api, outsider: Api) -> None:
    (theirs,) = ids(outsider, begin(outsider, "secret"))
    answer = api.post("/conversations", {"items": [{"type": "item_reference", "id": theirs}]})
    assert error(answer) == (404, "items", None)
    unknown = api.post("/conversations", {"items": [{"type": "item_reference", "id": "msg_unknown"}]})
    assert answer.text.replace(theirs, "msg_unknown") == unknown.text


def test_an_item_must_not_stand_in_it_twice(api: Api) -> None:
    twice = [said("Hi", id="msg_1"), said("Ho", id="msg_1")]
    assert refused(api, {"items": twice}) == (400, "items", None)


def test_more_than_20_initial_items_are_rejected(api: Api) -> None:
    assert len(items(api, begin(api, *map(str, range(20))))) == 20
    many = [said("Hi")] * 21
    assert refused(api, {"items": many}) == (400, "items", "array_above_max_length")


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
def test_it_says_what_is_wrong(api: Api, body: Any, param: str | None, code: str) -> None:
    assert refused(api, body) == (400, param, code)


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
def test_what_no_response_could_read_does_not_enter(api: Api, item: dict[str, Any], param: str) -> None:
    status, at, _ = refused(api, {"items": [said("Hi"), item]})
    assert (status, at) == (400, param)


@pytest.mark.parametrize("name", sorted(SEALED))
def test_what_was_not_sealed_here_does_not_enter(api: Api, name: str) -> None:
    assert refused(api, {"items": [SAMPLES[name]]}) == (400, "items", "invalid_encrypted_content")


def test_what_was_sealed_for_another_team_does_not_enter(api: Api, outsider: Api) -> None:
    token = content_cipher().encrypt(b'{"text": "Hm."}', team_id=api.caller.team.pk, purpose="reasoning")
    item = {**SAMPLES["rs_1"], "encrypted_content": token}
    assert ok(api.post("/conversations", {"items": [item]}))["object"] == "conversation"
    assert refused(outsider, {"items": [item]}) == (400, "items", "invalid_encrypted_content")


def test_what_is_refused_leaves_nothing_behind(api: Api) -> None:
    refused(api, {"items": [said("Hi"), {"type": "item_reference", "id": "msg_unknown"}]})
    assert ok(api.get("/conversations"))["data"] == []


def test_unknown_names_in_the_query_are_refused(api: Api) -> None:
    assert error(api.request("POST", "/conversations?include=x", json={})) == (400, "include", "unknown_parameter")


def test_bytes_of_images_are_stored_and_shown_by_request(api: Api) -> None:
    picture = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    made = ok(api.post("/conversations", {"items": [{"role": "user", "content": [picture]}]}))
    assert items(api, made["id"])[0]["content"][0]["image_url"] is None
    assert items(api, made["id"], include="message.input_image.image_url")[0]["content"][0]["image_url"] == PIXEL
