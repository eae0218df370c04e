"""Detection of what models can do, from the lists that scripted servers return over HTTP."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from routing.api_detection import detect_api, preferred_api
from routing.detection import ModelDetails, Support
from routing.upstream_check import UpstreamCheck, check_upstream, run_sync
from tenants import scope
from tenants.directory import UpstreamEndpoint
from tenants.models import AuditEvent, Model, Upstream, WireApi
from tests.support.model_server import ModelServer, model_server, models, ollama

YES, LIMITED, NO, UNKNOWN = Support.YES, Support.LIMITED, Support.NO, Support.UNKNOWN
VLLM = {"id": "Qwen/Qwen3-8B", "object": "model", "owned_by": "vllm", "max_model_len": 40960}
OPENROUTER = {
    "id": "z-ai/glm-4.6",
    "context_length": 202752,
    "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    "supported_parameters": ["max_tokens", "tools", "tool_choice", "reasoning"],
}


def listing(*entries: dict[str, Any]) -> dict[str, Any]:
    """Return the page of a list with these entries."""
    return {"/v1/models": {"object": "list", "data": list(entries)}}


def checked(server: ModelServer, *, key: str = "") -> UpstreamCheck:
    """Return the check of a server."""
    return run_sync(check_upstream(UpstreamEndpoint(id="up_test", base_url=server.base_url, api_key=key)))


@pytest.mark.parametrize(
    ("entry", "details"),
    [
        (VLLM, ModelDetails(context_window=40960)),
        (OPENROUTER, ModelDetails(context_window=202752, tools=YES, images=NO, reasoning=YES)),
        ({"id": "gpt-5", "object": "model", "owned_by": "openai"}, ModelDetails()),
        ({"id": "qwen3-4b", "owned_by": "llamacpp", "meta": {"n_ctx": 32768}}, ModelDetails(context_window=32768)),
        ({"id": "openai/gpt-oss-20b", "context_window": 131072}, ModelDetails(context_window=131072)),
        (
            {
                "id": "mistral-large-latest",
                "max_context_length": 131072,
                "capabilities": {"function_calling": True, "vision": False},
            },
            ModelDetails(context_window=131072, tools=YES, images=NO),
        ),
        (
            {
                "id": "claude",
                "max_input_tokens": 200000,
                "capabilities": {"image_input": {"supported": True}, "thinking": {"supported": False}},
            },
            ModelDetails(context_window=200000, images=YES, reasoning=NO),
        ),
        ({"id": "odd", "max_model_len": "many", "capabilities": ["x"], "architecture": None}, ModelDetails()),
        ({"id": "odd", "max_model_len": True, "context_length": 2**40}, ModelDetails()),
    ],
)
def test_documented_fields_of_a_list_are_detected(entry: dict[str, Any], details: ModelDetails) -> None:
    with model_server(listing(entry)) as server:
        assert checked(server).details == {entry["id"]: details}


def test_ollama_is_asked_for_the_abilities_of_each_model() -> None:
    pages = {
        **ollama("qwen3:8b", "gemma3"),
        "/api/ps": {"models": [{"name": "gemma3", "context_length": 8192}]},
        "/api/show qwen3:8b": {
            "capabilities": ["completion", "tools", "thinking"],
            "parameters": "temperature 0.7\nnum_ctx 32768",
        },
        "/api/show gemma3": {"capabilities": ["completion", "vision"]},
    }
    with model_server(pages) as server:
        assert checked(server).details == {
            "qwen3:8b": ModelDetails(context_window=32768, tools=LIMITED, images=NO, reasoning=YES),
            "gemma3": ModelDetails(context_window=8192, tools=NO, images=YES, reasoning=NO),
        }


def test_models_of_ollama_without_details_are_listed() -> None:
    with model_server(ollama("qwen3")) as server:
        check = checked(server)
    assert (check.error, check.details) == ("", {"qwen3": ModelDetails()})


def test_lm_studio_is_asked_for_its_loaded_models() -> None:
    row = {"id": "qwen/qwen3-8b", "type": "llm", "loaded_context_length": 4096, "capabilities": ["tool_use"]}
    pages = {**models_page("qwen/qwen3-8b", "other"), "/api/v0/models": {"data": [row, {"id": 3}, None]}}
    with model_server(pages) as server:
        assert checked(server).details == {
            "qwen/qwen3-8b": ModelDetails(context_window=4096, tools=YES, images=NO),
            "other": ModelDetails(),
        }


def models_page(*names: str) -> dict[str, Any]:
    """Return the list of LM Studio."""
    return {"/v1/models": models(*names, owner="organization_owner")}


def test_servers_of_other_makes_get_no_further_request() -> None:
    with model_server(listing(VLLM)) as server:
        checked(server)
        assert server.paths == ["/v1/models"]


def test_a_failed_check_has_the_words_of_the_server_without_the_key() -> None:
    key = "sk-very-secret-0123456789"
    with model_server({"/v1/models": {"error": {"message": f"Key {key} is blocked."}}}) as server:
        check = checked(server, key=key)
    assert "blocked" in check.error
    assert key not in check.error + check.words
    with model_server({}) as server:
        check = checked(server)
    assert (check.status, check.words) == (404, "not found")
    assert check.error == "The upstream has no list of models at this address."


@pytest.mark.parametrize(
    ("endpoints", "api"),
    [
        (["/v1/chat/completions"], "chat_completions"),
        (["/v1/chat/completions", "/v1/responses"], "chat_completions"),
        (["/v1/responses"], "responses"),
        ([], "chat_completions"),
    ],
)
def test_the_api_is_detected_without_a_call_to_a_model(endpoints: list[str], api: str) -> None:
    with model_server(listing(VLLM)) as server:
        server.endpoints = endpoints
        assert run_sync(detect_api(UpstreamEndpoint(id="up_test", base_url=server.base_url, api_key=""))) == api
        assert sorted(server.paths) == ["/v1/chat/completions", "/v1/responses"]


@pytest.mark.parametrize(
    ("base_url", "api"),
    [
        ("https://api.openai.com/v1", "responses"),
        ("https://my-resource.openai.azure.com/openai/v1", "responses"),
        ("https://api.openai.com.example.org/v1", "chat_completions"),
        ("https://openrouter.ai/api/v1", "chat_completions"),
    ],
)
def test_of_both_apis_openai_is_used_with_the_responses_api(base_url: str, api: str) -> None:
    assert preferred_api(base_url, list(WireApi)) == api


@pytest.mark.parametrize(
    ("details", "capabilities"),
    [
        (ModelDetails(), {}),
        (ModelDetails(context_window=4096, tools=YES, images=YES, reasoning=YES), {"context_window": 4096}),
        (
            ModelDetails(tools=LIMITED, images=NO, reasoning=LIMITED),
            {"forced_tool_choice": False, "vision": False, "think_tags": True},
        ),
        (ModelDetails(tools=NO, reasoning=NO), {"forced_tool_choice": False, "reasoning_efforts": ["none"]}),
    ],
)
def test_details_become_capabilities(details: ModelDetails, capabilities: dict[str, Any]) -> None:
    assert details.capabilities() == capabilities


def test_known_details_replace_others() -> None:
    details = ModelDetails(context_window=1, tools=YES, images=NO)
    assert details.with_known(ModelDetails(tools=NO, reasoning=YES)) == ModelDetails(
        context_window=1, tools=NO, images=NO, reasoning=YES
    )


def add(name: str, server: ModelServer, *options: str) -> str:
    """Run `manage.py add_upstream` for the model of vLLM, and return its output."""
    written = StringIO()
    required = ("--name", name, "--base-url", server.base_url, "--models", VLLM["id"])
    call_command("add_upstream", *map(str, required), *options, stdout=written)
    return written.getvalue()


def test_the_command_sets_and_prints_the_detected_context_window(database: None) -> None:
    with model_server(listing(VLLM)) as server:
        assert "Context window of Qwen/Qwen3-8B: 40960 tokens\n" in add("detected", server)
        row = Model.objects.get(upstream__name="detected")
        assert row.context_window == 40960
        with scope.every_team():
            line = AuditEvent.objects.get(action="model.updated", target=str(row.pk))
        assert (line.before, line.after) == ({"context_window": None}, {"context_window": 40960})
        assert json.loads(add("detected", server, "--json"))["test"]["context_windows"] == {VLLM["id"]: 40960}
    with scope.every_team():
        Upstream.objects.get(name="detected").delete()


def test_the_command_keeps_a_context_window_that_was_set(database: None) -> None:
    with model_server(listing(VLLM)) as server:
        printed = add("kept", server, "--capabilities", '{"context_window": 8192}')
    assert "40960 tokens (not stored: the model has another value)" in printed
    assert Model.objects.get(upstream__name="kept").context_window == 8192
    with scope.every_team():
        Upstream.objects.get(name="kept").delete()
