"""Malformed ids are rejected by name, in OpenAI's words; well-formed ids of other teams are not found."""

from typing import Any
from urllib.parse import quote

import pytest

from core.http.endpoints import Endpoint
from server.api_urls import ENDPOINTS
from server.reference.openapi import document
from tests.support.api import Api, error
from tests.support.conversations import begin
from tests.support.path_ids import prefixes_of, sample_ids
from tests.support.sampling import sampled
from tests.support.upstream import Script

pytestmark = pytest.mark.slow

HI: dict[str, Any] = {"model": "m", "input": "Hi"}
SEARCH = {"type": "file_search", "vector_store_ids": ["invalid_id"]}
PYTHON = {"type": "code_interpreter", "container": "invalid_id"}
AUTO = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1", "invalid_id"]}}
SHELL = {"type": "shell", "environment": {"type": "container_reference", "container_id": "invalid_id"}}
MASK = {"type": "image_generation", "input_image_mask": {"file_id": "invalid_id"}}
PICTURE = {"role": "user", "content": [{"type": "input_image", "file_id": "invalid_id"}]}
CHAT_FILE = {"role": "user", "content": [{"type": "file", "file": {"file_id": "invalid_id"}}]}
LINES = {"endpoint": "/v1/responses", "completion_window": "24h"}
PATHS = [endpoint for endpoint in ENDPOINTS if prefixes_of(endpoint)]
# Text that is not an id of any kind, percent-encoded.
NEVER_IDS = ["%00", "a%00b", "%20", "%F0%9F%90%98", "%FF", "%22%5C", "%0A", "%7Bx%7D", "a%27b%3B--"]


def message(param: str, prefix: str, text: str = "invalid_id") -> str:
    return f"Invalid '{param}': '{text}'. Expected an ID that begins with '{prefix}'."


@pytest.mark.parametrize(
    ("path", "body", "param", "prefix"),
    [
        ("/responses", {**HI, "conversation": "invalid_id"}, "conversation", "conv"),
        ("/responses", {**HI, "conversation": {"id": "invalid_id"}}, "conversation.id", "conv"),
        ("/responses", {**HI, "previous_response_id": "invalid_id"}, "previous_response_id", "resp"),
        ("/responses", {**HI, "prompt": {"id": "invalid_id"}}, "prompt.id", "pmpt"),
        ("/responses", {**HI, "tools": [SEARCH]}, "tools[0].vector_store_ids[0]", "vs"),
        ("/responses", {**HI, "tools": [PYTHON]}, "tools[0].container", "cntr"),
        ("/responses", {**HI, "tools": [AUTO]}, "tools[0].container.file_ids[1]", "file"),
        ("/responses", {**HI, "tools": [SHELL]}, "tools[0].environment.container_id", "cntr"),
        ("/responses", {**HI, "tools": [MASK]}, "tools[0].input_image_mask.file_id", "file"),
        ("/responses", {**HI, "input": [PICTURE]}, "input[0].content[0].file_id", "file"),
        ("/responses/compact", {**HI, "previous_response_id": "invalid_id"}, "previous_response_id", "resp"),
        ("/responses/input_tokens", {**HI, "conversation": "invalid_id"}, "conversation", "conv"),
        ("/conversations", {"items": [PICTURE]}, "items[0].content[0].file_id", "file"),
        ("/chat/completions", {"model": "m", "messages": [CHAT_FILE]}, "messages[0].content[0].file.file_id", "file"),
        ("/vector_stores", {"file_ids": ["invalid_id"]}, "file_ids[0]", "file"),
        ("/vector_stores/vs_1/files", {"file_id": "invalid_id"}, "file_id", "file"),
        ("/vector_stores/vs_1/file_batches", {"files": [{"file_id": "invalid_id"}]}, "files[0].file_id", "file"),
        ("/batches", {**LINES, "input_file_id": "invalid_id"}, "input_file_id", "file"),
        ("/containers", {"name": "c", "file_ids": ["invalid_id"]}, "file_ids[0]", "file"),
        ("/containers/cntr_1/files", {"file_id": "invalid_id"}, "file_id", "file"),
        ("/uploads/upload_1/complete", {"part_ids": ["invalid_id"]}, "part_ids[0]", "part"),
    ],
)
def test_a_malformed_id_in_a_body_names_its_prefix(
    api: Api, path: str, body: dict[str, Any], param: str, prefix: str
) -> None:
    answer = api.post(path, body)
    assert error(answer) == (400, param, "invalid_value")
    assert answer.json()["error"]["message"] == message(param, prefix)


def test_a_stream_and_a_background_run_reject_malformed_ids_as_well(api: Api) -> None:
    for wanted in ({"stream": True}, {"background": True}, {"background": True, "stream": True}):
        refused = api.post("/responses", {**HI, **wanted, "conversation": "invalid_id"})
        assert error(refused) == (400, "conversation", "invalid_value")


@pytest.mark.parametrize("one", PATHS, ids=[f"{one.method} {one.path}" for one in PATHS])
def test_a_malformed_id_in_a_path_names_its_prefix(api: Api, one: Endpoint) -> None:
    for name, prefix in prefixes_of(one).items():
        answer = api.request(one.method, one.template.format(**{**sample_ids(one), name: "invalid_id"}))
        assert error(answer) == (400, name, "invalid_value")
        assert answer.json()["error"]["message"] == message(name, prefix)


def test_a_replayed_stream_checks_the_id_of_its_path(api: Api) -> None:
    assert error(api.get("/responses/invalid_id", stream="true")) == (400, "response_id", "invalid_value")
    assert error(api.get("/responses/resp_%00", stream="true")) == (400, "response_id", "invalid_value")


def test_invalid_characters_are_reported_in_openais_words(api: Api) -> None:
    answer = api.post("/responses", {**HI, "previous_response_id": "@results.ress"})
    assert answer.json()["error"]["message"] == (
        "Invalid 'previous_response_id': '@results.ress'. Expected an ID that contains letters, numbers, underscores, "
        "or dashes, but this value contained additional characters."
    )


def test_replayed_items_keep_the_ids_of_other_servers(api: Api, script: Script) -> None:
    script.say("Hi.")
    replayed = [
        {"id": "01JH-other/server", "type": "message", "role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Hi"},
    ]
    assert api.create(model=script.model, input=replayed)["status"] == "completed"


def test_a_well_formed_id_of_another_team_is_not_found(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs = outsider.post("/responses", {**HI, "conversation": mine})
    unknown = outsider.post("/responses", {**HI, "conversation": "conv_unknown"})
    assert error(theirs)[0] == 404
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


def operations() -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Method, path and parameters of every operation of the OpenAPI document."""
    return [
        (method.upper(), path, operation["parameters"])
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]


@pytest.mark.parametrize(
    ("method", "path", "parameters"),
    sampled(operations(), 40, key="characters of URLs"),
    ids=lambda one: one if one else None,
)
def test_no_character_in_a_url_causes_an_internal_error(
    api: Api, admin_api: Api, method: str, path: str, parameters: list[dict[str, Any]]
) -> None:
    client = admin_api if path.startswith("/organization/") else api
    ids = [one["name"] for one in parameters if one["in"] == "path"]
    names = [one["name"] for one in parameters if one["in"] == "query"]
    known = dict.fromkeys(ids, "x")
    for endpoint in ENDPOINTS:
        if endpoint.template == path:
            known |= sample_ids(endpoint)
    for text in NEVER_IDS:
        for name in ids:
            for value in (text, f"{known[name]}{text}"):
                answer = client.request(method, path.format(**{**known, name: value}))
                assert 400 <= answer.status_code < 500, (name, value, answer.text)
                if "%00" in value:
                    assert error(answer) == (400, name, "invalid_value")
        for name in names:
            # A filter of metadata is written with its key.
            written = [f"metadata[{text}]", "metadata[k]"] if name == "metadata" else [quote(name)]
            for key in written:
                answer = client.request(method, f"{path.format(**known)}?{key}={text}")
                assert answer.status_code < 500, (key, text, answer.text)
                if "%00" in text:
                    assert answer.status_code == 400, (key, text, answer.text)
