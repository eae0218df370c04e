"""The OpenAPI document for readers and client generators: names of operations, tags and descriptions."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from server.api_urls import ENDPOINTS
from server.reference import descriptions
from server.reference.openapi import document, operation_id

EXTENSIONS = {
    "responses.list",
    "responses.approvals.decide",
    "responses.attempts.list",
    "responses.timeline",
    "conversations.list",
    "conversations.cancel",
    "conversations.fork",
    "conversations.export",
    "me.retrieve",
    "messages.create",  # of Anthropic's SDK
    "messages.count_tokens",
}
"""Operations that the SDK has no method for."""
FILES = {"file": b"x", "data": b"x", "image": b"x"}
"""Arguments of the SDK's methods that must be bytes."""


def operations() -> dict[str, dict[str, Any]]:
    """Return the operations by their names."""
    found = [operation for methods in document()["paths"].values() for operation in methods.values()]
    assert len({one["operationId"] for one in found}) == len(found)
    return {one["operationId"]: one for one in found}


def objects(part: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects with properties below a part of the document, each with its path."""
    if isinstance(part, list):
        for index, inner in enumerate(part):
            yield from objects(inner, f"{path}[{index}]")
    elif isinstance(part, dict):
        if isinstance(part.get("properties"), dict) and part.get("type") == "object":
            yield path, part["properties"]
        for key, inner in part.items():
            yield from objects(inner, f"{path}.{key}")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=operation_id)
def test_operations_are_named_like_the_methods_of_the_sdk(endpoint: Any) -> None:
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json={"data": [{"embedding": []}]})

    name = operation_id(endpoint)
    with OpenAI(
        api_key="x",
        admin_api_key="x",
        base_url="http://sdk.test/v1",
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    ) as client:
        method: Any = client
        for step in name.split("."):
            method = getattr(method, step, None)
        if name in EXTENSIONS:
            assert method is None, "the SDK has this method by now"
            return
        needed = [one for one in inspect.signature(method).parameters.values() if one.default is one.empty]
        method(**{one.name: FILES.get(one.name, "x") for one in needed})
    assert (sent[0].method, sent[0].url.path) == (endpoint.method, "/v1" + re.sub(r"{\w+}", "x", endpoint.template))


@pytest.mark.slow
def test_every_operation_has_a_summary_a_description_and_a_declared_tag() -> None:
    tags = {tag["name"] for tag in document()["tags"]}
    for name, operation in operations().items():
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name
    assert {tag for operation in operations().values() for tag in operation["tags"]} == tags


@pytest.mark.slow
def test_every_parameter_has_a_description() -> None:
    for name, operation in operations().items():
        assert [one["name"] for one in operation["parameters"] if not one["description"]] == [], name


def test_every_object_and_every_property_has_a_description() -> None:
    schemas = document()["components"]["schemas"]
    assert [name for name, schema in schemas.items() if not schema.get("description")] == []
    missing = [
        f"{path}.{name}"
        for path, properties in objects(schemas, "")
        for name, schema in properties.items()
        if not schema.get("description")
    ]
    assert missing == [], "add them to platform/server/reference/descriptions.py"


def test_no_description_is_unused() -> None:
    schemas = document()["components"]["schemas"]
    used = {name: {"": schema.get("description")} for name, schema in schemas.items()}
    for path, properties in objects(schemas, ""):
        texts = {name: schema["description"] for name, schema in properties.items()}
        used[path.split(".")[1]] |= texts
    for name, texts in descriptions.OBJECTS.items():
        assert texts.items() <= used[name].items(), name
    assert {text for texts in used.values() for text in texts.values()} >= set(descriptions.PROPERTIES.values())
    assert descriptions.OPERATIONS.keys() == operations().keys()
    parameters = {one["name"].removesuffix("[]") for each in operations().values() for one in each["parameters"]}
    assert descriptions.PARAMETERS.keys() == parameters


def test_errors_are_documented_with_their_format() -> None:
    responses = document()["components"]["responses"]
    for name, operation in operations().items():
        failures = [answer for status, answer in operation["responses"].items() if status != "200"]
        assert failures, name
        assert {one["$ref"].rsplit("/", 1)[1] for one in failures} <= responses.keys()
    for name, answer in responses.items():
        assert answer["description"]
        schema = {"$ref": f"#/components/schemas/{name.rstrip('0123456789')}"}
        assert answer["content"]["application/json"]["schema"] == schema
