"""Requests in the form that each provider and family of models accepts, with earlier reasoning."""

import re
from typing import Any

import pytest

from conversations.items import from_wire
from providers import dialects
from providers.chat_messages import UNREADABLE_ARGUMENTS, MessageFormat, ReasoningWriter, as_object, messages
from providers.dialects import THINK_TAGS, THINKING_PARTS, Dialect, dialect_of, without_refused_limit
from tenants.capabilities import Capabilities
from tenants.directory import Route, UpstreamEndpoint

LOCAL = "http://127.0.0.1:8000/v1"
USER: dict[str, Any] = {"type": "message", "role": "user", "content": "Hi"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


def route(base_url: str = LOCAL, model: str = "m", **capabilities: Any) -> Route:
    """Return the route of a model."""
    upstream = UpstreamEndpoint(id=f"{base_url} {model}", name="u", base_url=base_url, api_key="")
    return Route(model=model, upstream_model=model, upstream=upstream, capabilities=Capabilities(**capabilities))


@pytest.mark.parametrize(
    ("base_url", "limit"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://team.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://api.mistral.ai/v1", "max_tokens"),
        ("http://127.0.0.1:11434/v1", "max_tokens"),
        ("https://api.openai.com.example/v1", "max_tokens"),
        (LOCAL, "max_tokens"),
    ],
)
def test_the_output_limit_has_the_documented_name_of_the_provider(base_url: str, limit: str) -> None:
    assert dialect_of(route(base_url)).limit == limit


def test_capabilities_override_the_provider() -> None:
    assert dialect_of(route(output_limit="max_completion_tokens")).limit == "max_completion_tokens"
    chosen = dialect_of(route("https://api.deepseek.com", "deepseek-v4", reasoning_history="none"))
    assert (chosen.reasoning_field, chosen.needs_reasoning) == ("", False)
    assert dialect_of(route(reasoning_field="reasoning", reasoning_history="all_turns")).all_turns


@pytest.mark.parametrize(
    ("base_url", "model", "field", "all_turns"),
    [
        ("https://api.deepseek.com/v1", "deepseek-chat", "reasoning_content", True),
        ("https://api.moonshot.ai/v1", "kimi-k2-thinking", "reasoning_content", True),
        ("https://api.z.ai/api/paas/v4", "glm-5", "reasoning_content", False),
        ("https://api.minimax.io/v1", "MiniMax-M2", THINK_TAGS, True),
        ("https://openrouter.ai/api/v1", "anthropic/claude-sonnet", "reasoning_details", True),
        ("https://api.mistral.ai/v1", "magistral-medium-latest", THINKING_PARTS, False),
        (LOCAL, "openai/gpt-oss-120b", "reasoning", False),
        (LOCAL, "moonshotai/Kimi-K2-Thinking", "reasoning_content", True),
        (LOCAL, "Qwen/Qwen3-8B", "", False),
    ],
)
def test_earlier_reasoning_is_sent_as_required_by_the_provider_or_model_family(
    base_url: str, model: str, field: str, all_turns: bool
) -> None:
    chosen = dialect_of(route(base_url, model))
    assert (chosen.reasoning_field, chosen.all_turns) == (field, all_turns)


def test_every_row_names_its_source() -> None:
    assert all(re.match(r"https://\S+/\S+$", row.source) for row in dialects._ROWS)


def written(dialect: Dialect, *items: dict[str, Any], context: str | None = None) -> list[dict[str, Any]]:
    """Return the messages of items in a dialect."""
    parsed = [from_wire(item) for item in items]
    reasoning = ReasoningWriter(dialect, items=parsed, context=context) if dialect.reasoning_field else None
    return messages(
        None, parsed, reasoning=reasoning, message_format=MessageFormat(short_call_ids=dialect.short_call_ids)
    )


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("reasoning_content", {"content": None, "reasoning_content": "Hm."}),
        (THINK_TAGS, {"content": "<think>\nHm.\n</think>\n\n"}),
        (THINKING_PARTS, {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}),
    ],
)
def test_reasoning_is_written_in_the_form_of_the_provider(field: str, expected: dict[str, Any]) -> None:
    (_, message, _) = written(Dialect(reasoning_field=field), USER, THOUGHT, CALL, OUTPUT)
    assert {name: message[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("all_turns", "context", "sent"),
    [(True, None, True), (False, None, False), (False, "all_turns", True), (True, "current_turn", False)],
)
def test_reasoning_of_earlier_turns_depends_on_provider_and_request(
    all_turns: bool, context: str | None, sent: bool
) -> None:
    dialect = Dialect(reasoning_field="reasoning_content", all_turns=all_turns)
    found = written(dialect, USER, THOUGHT, CALL, OUTPUT, USER, context=context)
    assert ("reasoning_content" in found[1]) == sent


def test_providers_that_require_reasoning_get_an_empty_field() -> None:
    dialect = Dialect(reasoning_field="reasoning_content", all_turns=True, needs_reasoning=True)
    found = written(dialect, USER, CALL, OUTPUT, USER, THOUGHT, {**CALL, "call_id": "b"}, context="current_turn")
    assert [message.get("reasoning_content") for message in found if "tool_calls" in message] == ["", "Hm."]


def test_shortened_ids_connect_calls_with_their_outputs() -> None:
    (_, asked, answer) = written(Dialect(short_call_ids=True), USER, CALL, OUTPUT)
    assert asked["tool_calls"][0]["id"] == answer["tool_call_id"]
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", answer["tool_call_id"])
    (_, asked, _) = written(Dialect(short_call_ids=True), USER, {**CALL, "call_id": "a1B2c3D4e"})
    assert asked["tool_calls"][0]["id"] == "a1B2c3D4e"


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ('{"a": NaN}', '{"a":null}'),
        ('{"a": "b\nc"}', '{"a":"b\\nc"}'),
        ('{"a": 1', f'{{"{UNREADABLE_ARGUMENTS}":"{{\\"a\\": 1"}}'),
        ('{"a": 1}{"a": 2}', f'{{"{UNREADABLE_ARGUMENTS}":"{{\\"a\\": 1}}{{\\"a\\": 2}}"}}'),
        ("[1]", f'{{"{UNREADABLE_ARGUMENTS}":"[1]"}}'),
        ('{"a": "\\ud800"}', f'{{"{UNREADABLE_ARGUMENTS}":"{{\\"a\\": \\"\\\\ud800\\"}}"}}'),
        ("[" * 100_000, f'{{"{UNREADABLE_ARGUMENTS}":"{"[" * 100_000}"}}'),
    ],
)
def test_arguments_are_always_sent_as_an_object(arguments: str, sent: str) -> None:
    assert as_object(arguments) == sent


@pytest.mark.parametrize(
    ("name", "error", "other"),
    [
        (
            "max_tokens",
            "Unsupported parameter: 'max_tokens' is not supported with this model.",
            "max_completion_tokens",
        ),
        ("max_completion_tokens", "[{'type': 'extra_forbidden', 'loc': ('max_completion_tokens',)}]", "max_tokens"),
        ("max_tokens", "max_tokens is too large: 100000. The model supports at most 4096.", None),
        ("max_tokens", "Unknown parameter: 'frequency_penalty'.", None),
    ],
)
def test_an_unknown_output_limit_is_sent_under_its_other_name(name: str, error: str, other: str | None) -> None:
    is_refused = dialects.is_refused_limit(400, error)
    body = without_refused_limit({"model": "m", name: 5}, error) if is_refused else None
    assert body == (None if other is None else {"model": "m", other: 5})
