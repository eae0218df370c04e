"""JSON and other documents that pages show are valid requests, answers and lines of this version."""

import json
import logging
import tomllib
from typing import Any

import pytest
from mcp_types import CallToolRequest, Tool
from openai.types.webhooks import UnwrapWebhookEvent
from pydantic import TypeAdapter
from pytest_django import Settings

from core.telemetry.logs import AccessFormatter
from gateway.batches.requests import parse_line
from responses.api.objects import PendingDecision
from responses.schema import parse_create
from tests.docs.blocks import ROOT, blocks
from tools.mcp.servers import EFFECT_ID, HONOURS_EFFECT_ID


def documents(page: str, language: str = "json") -> list[Any]:
    """Return the documents of a page, parsed if they are JSON."""
    texts = [block.text for block in blocks(ROOT / "docs" / page) if block.language == language]
    return [json.loads(text) for text in texts] if language == "json" else texts


def test_the_line_of_a_batch_is_valid() -> None:
    [line] = documents("howto/batches.md")
    parsed = parse_line(json.dumps(line).encode(), endpoint="/v1/responses")
    assert parsed.custom_id == line["custom_id"]
    assert parse_create(line["body"]).model == "demo"


@pytest.mark.parametrize("page", ["howto/code-interpreter.md", "howto/mcp.md"])
def test_documented_tools_are_accepted(page: str, settings: Settings) -> None:
    # As the page says, the administrator allows the domains.
    settings.CONTAINER_ALLOWED_DOMAINS = ["pypi.org", "files.pythonhosted.org"]
    tools = [document for document in documents(page) if "type" in document]
    assert [tool.type for tool in parse_create({"model": "demo", "input": "Hi", "tools": tools}).tools or []]


def test_the_effect_id_of_a_call_is_in_its_metadata() -> None:
    [call] = [document for document in documents("howto/mcp.md") if "method" in document]
    assert [*call["params"]["_meta"]] == [EFFECT_ID]
    CallToolRequest.model_validate(call)


def test_a_tool_declares_that_it_honours_effect_ids() -> None:
    [tool] = [document for document in documents("howto/mcp.md") if "inputSchema" in document]
    assert Tool.model_validate(tool).meta == {HONOURS_EFFECT_ID: True}


def test_pending_decisions_have_the_documented_fields() -> None:
    [shown] = [document for document in documents("howto/mcp.md") if "pending_decisions" in document]
    TypeAdapter(list[PendingDecision]).validate_python(shown["pending_decisions"], strict=True, extra="forbid")


def test_the_line_of_the_access_log_has_the_documented_fields() -> None:
    [line] = documents("howto/operations.md")
    given = {name: value for name, value in line.items() if name not in {"event", "level", "logger", "ts"}}
    record = logging.makeLogRecord({"name": "access", "msg": "request", "levelname": "INFO", **given})
    assert {**json.loads(AccessFormatter().format(record)), "ts": line["ts"]} == line


def test_the_documented_delivery_is_an_event() -> None:
    [delivery] = documents("howto/webhooks.md", "http")
    head, _, body = delivery.partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines())
    event = json.loads(body)
    assert headers.keys() == {"webhook-id", "webhook-timestamp", "webhook-signature"}
    assert headers["webhook-id"] == event["id"]
    adapter: TypeAdapter[Any] = TypeAdapter(UnwrapWebhookEvent)
    assert adapter.validate_python(event, strict=True).to_dict() == event


def test_the_configuration_of_codex_names_the_wire_api_of_the_platform() -> None:
    [text] = documents("howto/codex.md", "toml")
    configuration = tomllib.loads(text)
    provider = configuration["model_providers"][configuration["model_provider"]]
    tested = (ROOT / "tests/contract/clients/codex/client.mjs").read_text()
    assert [name for name in provider if name not in tested] == []
    assert (provider["wire_api"], provider["base_url"]) == ("responses", "http://127.0.0.1:8000/v1")
