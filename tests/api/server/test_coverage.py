"""The table of supported and unsupported features, compared with the server: it is complete and correct.

Whoever adds or changes a parameter, a tool, an item or an endpoint changes platform/server/reference/coverage.py with
it, and runs `manage.py api_coverage`.
"""

import re
from typing import Any, get_args

import httpx2
import pytest
from django.urls import resolve
from openai.types.responses import ResponseItem, ResponseStreamEvent, Tool

from conversations.items import CompactionTrigger, ItemReference, StoredItem
from core.errors import error_table
from core.http.endpoints import Endpoint
from gateway.anthropic.api import is_messages
from responses.schema import CreateResponse
from responses.schema import create as schema
from server.api_urls import ENDPOINTS, VIEWS
from server.reference.coverage import (
    EVENTS,
    ITEMS,
    PARAMETERS,
    TOOLS,
    Support,
    SupportedParameter,
)
from server.reference.remedies import REMEDIES
from server.reference.sdk_comparison import gaps
from server.reference.sdk_decisions import outdated, undecided
from tenants.views import ApiView
from tests.support.api import Api, error
from tests.support.chunks import text
from tests.support.type_deviations import TOOLS as EXTENSIONS
from tests.support.upstream import Script, stream
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow

WITH: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": [{"type": "function", "name": "look"}]},
    "stream_options": {"stream": True},
}
"""What a parameter cannot do without."""
ACCEPTED = [one for one in PARAMETERS if one.support in {Support.SUPPORTED, Support.ECHOED}]
DEPENDENT = [one for one in PARAMETERS if one.support is Support.DEPENDS]
REFUSALS = [
    (one.name, one.example if one.support is Support.REJECTED else one.rejected)
    for one in PARAMETERS
    if one.support is Support.REJECTED or one.rejected is not None
]
UNSUPPORTED = {"unsupported_parameter", "unsupported_value"}


def names(parameters: list[SupportedParameter]) -> list[str]:
    return [one.name for one in parameters]


def kinds(union: Any) -> set[str]:
    """Return the values of `type` in a union of the SDK."""
    return {get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(get_args(union)[0])}


def test_every_error_has_a_remedy_and_every_remedy_an_error() -> None:
    assert sorted(map(str, REMEDIES)) == sorted(str((status, code)) for status, _, code, _ in error_table())


def test_the_manual_has_every_parameter() -> None:
    assert sorted(one.name for one in PARAMETERS) == sorted(
        CreateResponse.model_fields | dict.fromkeys(schema._UNSUPPORTED)
    )


@pytest.mark.parametrize("one", ACCEPTED, ids=names(ACCEPTED))
def test_honoured_and_echoed_parameters_are_accepted(api: Api, script: Script, one: SupportedParameter) -> None:
    script.always(stream(*text("Hello")))
    body = {"model": script.model, "input": "Hi", **WITH.get(one.name, {}), one.name: one.example}
    if one.name == "model":
        body["model"] = script.model
    answer = api.post("/responses", body)
    if answer.status_code != 200:
        # The ids are unknown, so the parameter itself was accepted.
        assert "…" in str(one.example)
        assert error(answer)[2] not in {"unknown_parameter", *UNSUPPORTED}


@pytest.mark.parametrize("one", DEPENDENT, ids=names(DEPENDENT))
def test_model_dependent_parameters_are_accepted_or_rejected(api: Api, script: Script, one: SupportedParameter) -> None:
    script.always(stream(*text("Hello")))
    answer = api.post("/responses", {"model": script.model, "input": "Hi", one.name: one.example})
    if answer.status_code == 200:
        assert script.bodies[0][one.name] == one.example
    else:
        status, param, code = error(answer)
        assert (status, (param or "").split(".")[0]) == (400, one.name)
        # Another test may have added a moderation model for keys of its own.
        assert code in {"model_not_found", *UNSUPPORTED}


@pytest.mark.parametrize(("name", "value"), REFUSALS, ids=[f"{name}: {value}" for name, value in REFUSALS])
def test_refused_parameters_are_refused_by_name(api: Api, script: Script, name: str, value: Any) -> None:
    status, param, code = error(api.post("/responses", {"model": script.model, "input": "Hi", name: value}))
    assert (status, (param or "").split(".")[0]) == (400, name)
    assert code in UNSUPPORTED


def test_the_manual_has_every_tool_of_the_sdk() -> None:
    aliases = {"web_search_2025_08_26", "web_search_preview_2025_03_11"}
    assert {one.type for one in TOOLS} == kinds(Tool) | aliases | EXTENSIONS.keys()


LACKING: dict[str, tuple[str, ...]] = {"code_interpreter": ("tools[0].container",)}
"""What a tool needs beside its type, and this test does not say."""


@pytest.mark.parametrize("one", TOOLS, ids=[one.type for one in TOOLS])
def test_supported_tools_are_accepted_and_others_are_refused_by_type(api: Api, script: Script, one: Any) -> None:
    """A supported tool is rejected only for missing fields."""
    script.always(stream(*text("Hello")))
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "tools": [{"type": one.type}]})
    if one.support is Support.REJECTED:
        assert error(answer) == (400, "tools[0].type", "unsupported_value")
    elif one.support is Support.CONFIGURED and answer.status_code != 200:
        assert error(answer)[1] in {"tools[0].type", *LACKING.get(one.type, ())}
    elif answer.status_code != 200:
        assert error(answer)[2] != "unsupported_value"


@pytest.mark.slow
def test_every_difference_from_the_sdk_has_a_decision() -> None:
    found = gaps()
    assert (undecided(found), outdated(found)) == ([], [])


def test_the_manual_has_every_item() -> None:
    assert {one.type for one in ITEMS} == kinds(ResponseItem) | {"item_reference", "compaction_trigger"}


def test_the_input_items_of_the_manual_are_accepted() -> None:
    classes = [*get_args(StoredItem), CompactionTrigger, ItemReference]
    assert {one.type for one in ITEMS if one.input} == {one.model_fields["type"].default for one in classes}


def test_the_events_of_the_manual_exist_in_the_sdk() -> None:
    assert set(EVENTS) <= kinds(ResponseStreamEvent)


def declared_views() -> set[type[ApiView]]:
    """Return every view with a path, including modules that the URLs do not list."""
    return {view for view in ApiView.__subclasses__() if view.path and not view.__module__.startswith("tests.")}


def test_every_declared_endpoint_has_a_url_and_a_line_in_the_table() -> None:
    assert declared_views() == set(VIEWS)
    assert {(one.method, one.path) for view in VIEWS for one in view.endpoints} == {
        (one.method, one.path) for one in ENDPOINTS
    }


def test_every_endpoint_is_declared_once() -> None:
    assert len({(one.method, one.path) for one in ENDPOINTS}) == len(ENDPOINTS)
    assert len({one.summary for one in ENDPOINTS}) == len(ENDPOINTS)


@pytest.mark.parametrize("one", ENDPOINTS, ids=[f"{one.method} {one.path}" for one in ENDPOINTS])
def test_each_endpoint_resolves_to_its_view(one: Endpoint) -> None:
    view: Any = resolve("/v1" + re.sub(r"{\w+}", "unknown", one.template)).func
    assert one in view.cls.endpoints
    assert one.matches(one.method, "/v1" + re.sub(r"{\w+}", "unknown", one.template))


@pytest.mark.parametrize("one", ENDPOINTS, ids=[f"{one.method} {one.path}" for one in ENDPOINTS])
def test_each_endpoint_requires_a_key_with_its_scope(web: WebProcess, make_api: Any, one: Endpoint) -> None:
    path = re.sub(r"{\w+}", "unknown", one.template)
    assert httpx2.request(one.method, f"{web.url}/v1{path}").status_code == 401
    if not one.scope:
        return
    other = "files.read" if one.scope != "files.read" else "models.read"
    refused = make_api(scopes=[other]).request(one.method, path)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    if not is_messages(f"/v1{path}"):
        assert refused.json()["error"]["code"] == "insufficient_scope"


@pytest.mark.parametrize("view", VIEWS, ids=[view.path for view in VIEWS])
def test_other_methods_get_405_with_the_allowed_methods(api: Api, view: type[ApiView]) -> None:
    path = re.sub(r"{\w+}", "unknown", view.endpoints[0].template)
    methods = {one.method for one in view.endpoints}
    allowed = methods | ({"HEAD"} if "GET" in methods else set())
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - methods:
        refused = api.request(method, path)
        assert refused.status_code == 405
        if not is_messages(f"/v1{path}"):
            assert error(refused) == (405, None, "method_not_supported")
        assert set(refused.headers["allow"].split(", ")) == allowed
