"""Hosted tools that this server cannot provide: they are left out with a warning, or rejected."""

from typing import Any

import pytest

from tenants import scope
from tenants.models import Team
from tests.support.api import Api, error
from tests.support.background import ended
from tests.support.search_engine import engine, search_server
from tests.support.upstream import Script
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

FUNCTION: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SEARCH: dict[str, Any] = {"type": "web_search"}
CACHED: dict[str, Any] = {**SEARCH, "external_web_access": False}
NO_ACCESS = "Web search without external web access is not supported by this server."
NO_ENGINE = (
    "The tool 'web_search' was left out. The tool type 'web_search' is not supported here: no search engine is "
    "configured. An operator can set SEARXNG_URL or add a search engine in the admin."
)


def request(script: Script, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": script.model, "input": "Hi", "tools": [*tools, FUNCTION], **more}


def functions(script: Script) -> list[str]:
    """Return the names of the functions that the model received last."""
    return [tool["function"]["name"] for tool in script.bodies[-1]["tools"]]


@pytest.mark.parametrize("search", [SEARCH, {"type": "web_search_preview"}, {**SEARCH, "external_web_access": True}])
def test_a_search_without_an_engine_is_left_out_with_a_warning(
    api: Api, script: Script, search: dict[str, Any]
) -> None:
    answer = api.post("/responses", request(script.say("Hello"), search))
    assert answer.status_code == 200
    assert answer.headers["x-warning"] == NO_ENGINE.replace("web_search", search["type"])
    assert ([tool["type"] for tool in answer.json()["tools"]], functions(script)) == (["function"], ["look"])


def test_a_search_without_web_access_is_left_out(reaching: Api, script: Script) -> None:
    with search_server() as served:
        engine(reaching.caller.team, served)
        answer = reaching.post("/responses", request(script.say("Hello"), CACHED))
    assert answer.headers["x-warning"] == f"The tool 'web_search' was left out. {NO_ACCESS}"
    assert functions(script) == ["look"]


def test_a_search_for_texts_and_images_is_reduced_to_texts(reaching: Api, script: Script) -> None:
    with search_server() as served:
        engine(reaching.caller.team, served)
        both = {**SEARCH, "search_content_types": ["text", "image"]}
        answer = reaching.post("/responses", request(script.say("Hello"), both))
        assert answer.headers["x-warning"] == "Searching for images is not supported by this server."
        assert answer.json()["tools"][0]["search_content_types"] == ["text", "image"]
        assert "web_search" in functions(script)
        images = {"type": "web_search_preview", "search_content_types": ["image"]}
        answer = reaching.post("/responses", request(script.say("Hello"), images))
        assert answer.headers["x-warning"].startswith("The tool 'web_search_preview' was left out. Searching for")
        assert functions(script) == ["look"]


def test_image_generation_without_a_model_is_left_out(api: Api, script: Script) -> None:
    answer = api.post("/responses", request(script.say("Hello"), {"type": "image_generation"}, CACHED))
    warnings = answer.headers["x-warning"].split("The tool ")
    assert [warning.split("'")[1] for warning in warnings if "was left out" in warning] == [
        "image_generation",
        "web_search",
    ]
    assert functions(script) == ["look"]


def test_a_request_without_unavailable_tools_has_no_warning(api: Api, script: Script) -> None:
    assert "x-warning" not in api.post("/responses", request(script.say("Hello"))).headers


def test_a_stream_has_the_warning(api: Api, script: Script) -> None:
    with api.stream(**request(script.say("Hello"), CACHED)) as live:
        assert live.headers["x-warning"] == f"The tool 'web_search' was left out. {NO_ACCESS}"
        assert live.rest()[-1]["type"] == "response.completed"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_has_the_warning(api: Api, script: Script, stream: bool) -> None:
    body = request(script.say("Hello"), CACHED, background=True)
    if stream:
        with api.stream(**body) as live:
            assert live.headers["x-warning"] == f"The tool 'web_search' was left out. {NO_ACCESS}"
            assert live.rest()[-1]["type"] == "response.completed"
    else:
        answer = api.post("/responses", body)
        assert answer.headers["x-warning"] == f"The tool 'web_search' was left out. {NO_ACCESS}"
        assert ended(api, answer.json()["id"])["status"] == "completed"
    assert functions(script) == ["look"]


def test_the_first_event_on_a_websocket_has_the_warning(web: WebProcess, api: Api, script: Script) -> None:
    body = request(script.say("Hello"), CACHED, stream_id="a")
    with open_socket(web.url, secret=api.caller.secret) as socket:
        created, *later = socket.create(**body)
    assert created["headers"] == {"x-warning": f"The tool 'web_search' was left out. {NO_ACCESS}"}
    assert (created["stream_id"], later[-1]["type"]) == ("a", "response.completed")
    assert all("headers" not in event for event in later)


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ({"type": "web_search"}, [CACHED, FUNCTION]),
        ("required", [CACHED]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}, [CACHED, FUNCTION]),
    ],
)
def test_a_forced_tool_is_rejected(api: Api, choice: Any, tools: list[Any]) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": tools, "tool_choice": choice})
    assert error(answer) == (400, "tools[0].external_web_access", "unsupported_value")
    assert answer.json()["error"]["message"] == NO_ACCESS


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "required",
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "web_search"}, {"type": "function", "name": "look"}],
        },
    ],
)
def test_a_tool_choice_with_an_available_alternative_is_served(api: Api, script: Script, choice: Any) -> None:
    answer = api.post("/responses", request(script.call(look="{}"), CACHED, tool_choice=choice))
    assert (answer.status_code, "x-warning" in answer.headers) == (200, True)


def test_a_tool_choice_without_available_tools_is_not_sent_upstream(api: Api, script: Script) -> None:
    body = {"model": script.say("Hello").model, "input": "Hi", "tools": [CACHED], "tool_choice": "auto"}
    assert api.post("/responses", body).status_code == 200
    assert script.bodies[0].keys().isdisjoint({"tools", "tool_choice", "parallel_tool_calls"})


def test_errors_of_other_tools_keep_their_positions(api: Api) -> None:
    mcp = {"type": "mcp", "server_label": "s", "server_url": "http://10.0.0.1/mcp"}
    body = {"model": "m", "input": "Hi", "tools": [CACHED, mcp]}
    assert error(api.post("/responses", body))[1] == "tools[1].server_url"


def test_unavailable_tools_are_an_error_for_a_strict_team(api: Api, outsider: Api, script: Script) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(reject_unavailable_tools=True)
    body = request(script, CACHED)
    assert error(api.post("/responses", body)) == (400, "tools[0].external_web_access", "unsupported_value")
    assert error(api.post("/responses", request(script, SEARCH)))[1] == "tools[0].type"
    # The setting of one team does not affect another.
    script.say("Hello")
    assert outsider.post("/responses", body).status_code == 200
