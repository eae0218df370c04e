"""Tables of the supported parts of the OpenAI API: the source of two pages, and checked by tests.

The endpoints are those that the views declare (`core.http.endpoints`).
Run `manage.py api_coverage` after every change here: it generates the tables of the pages.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, get_args

from core.errors import error_table
from engine.events.types import Event
from responses.api import websocket
from server.api_urls import ENDPOINTS
from server.reference.remedies import REMEDIES
from server.reference.sdk_decisions import DECISIONS

PAGES = ("docs/reference/api-coverage.md", "docs/reference/errors.md")
_REGION = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", re.DOTALL)


class Support(StrEnum):
    """Level of support for a feature of the API."""

    SUPPORTED = "supported"
    # Stored and shown in the response, without any other effect.
    ECHOED = "echoed"
    # Rejected unless the model's settings in the admin allow it.
    DEPENDS = "depends on the model"
    # Rejected unless the operator has configured a service or a model for it.
    CONFIGURED = "requires configuration"
    # A 400 that names the parameter: nothing is ignored silently.
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class SupportedParameter:
    """Parameter of `POST /v1/responses`. `rejected` is a value that OpenAI accepts and this server rejects."""

    support: Support
    name: str
    example: Any
    note: str = ""
    rejected: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedTool:
    """Type of tool."""

    type: str
    support: Support
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedItem:
    """Type of item. With `input` it is allowed in requests, with `output` it may occur in responses."""

    type: str
    input: bool
    output: bool
    note: str = ""


_supported = partial(SupportedParameter, Support.SUPPORTED)
_echoed = partial(SupportedParameter, Support.ECHOED)
_depends = partial(SupportedParameter, Support.DEPENDS)
_FORWARDED = "forwarded"
_EXTENSION = "a vLLM extension; forwarded to models whose settings allow it"
PARAMETERS = (
    _supported("model", "demo", "selects the upstream; `model_not_found` if it is unknown or not allowed for the key"),
    _supported("input", "Hi", "a string or a list of items, see below"),
    _supported("instructions", "Be brief.", "the first system message; not inherited along `previous_response_id`"),
    _supported("previous_response_id", "resp_…", "a stored response of the team that has ended"),
    _supported("prompt", {"id": "pmpt_…"}, "a stored prompt of the team, with its variables"),
    _supported("stream", True),  # noqa: FBT003 - an example of a value
    _supported(
        "stream_options",
        {"include_obfuscation": False},
        "only with `stream`; `include_obfuscation` pads deltas",
    ),
    _supported("store", False, "default true; with false no content is stored"),  # noqa: FBT003 - the same
    _supported(
        "metadata",
        {"order": "12"},
        "16 pairs, keys up to 64 and values up to 512 characters; lists can be filtered by it",
    ),
    _supported(
        "client_metadata",
        {"session_id": "s1"},
        "stored with the response and not returned; Codex sends it with every request",
    ),
    _supported("tools", [{"type": "function", "name": "look"}], "see below"),
    _supported("tool_choice", "auto", "`none`, `auto`, `required`, one tool, or `allowed_tools`"),
    _supported("parallel_tool_calls", False, "with false only the first call of a turn is used"),  # noqa: FBT003
    _supported("max_tool_calls", 3, "the server executes no further calls of its tools and informs the model"),
    _supported("max_output_tokens", 100, "at least 16; forwarded under the name that the upstream documents"),
    _supported("temperature", 0.5, _FORWARDED),
    _supported("top_p", 0.5, _FORWARDED),
    _supported("presence_penalty", 0.5, _FORWARDED),
    _supported("frequency_penalty", 0.5, _FORWARDED),
    _supported("top_logprobs", 3, "with `message.output_text.logprobs` in `include`; otherwise echoed"),
    _supported("include", ["message.output_text.logprobs"], "optional fields of output items"),
    _supported(
        "text", {"verbosity": "low"}, "an output that violates the format ends as `failed`, never as `completed`"
    ),
    _supported(
        "reasoning",
        {"effort": "low"},
        "`effort`, `summary`, `context`; `mode` only `standard`",
        rejected={"mode": "pro"},
    ),
    _supported(
        "truncation",
        "auto",
        "`auto` drops items from the beginning; with `disabled` an input that is too long is an error",
    ),
    _supported("service_tier", "flex", "forwarded; the response shows the tier that the upstream reports"),
    _supported("user", "u1", "forwarded; stored as the response's end user"),
    _supported("safety_identifier", "u1", "like `user`"),
    _supported("prompt_cache_key", "k", _FORWARDED),
    _supported("prompt_cache_retention", "24h", _FORWARDED),
    _supported("prompt_cache_options", {"mode": "implicit"}, "forwarded; `prewarm` creates a response without output"),
    _supported("generate", False, "false creates a response without output, to be continued later"),  # noqa: FBT003 - the same
    _echoed(
        "image",
        {"context_compression": "auto"},
        "images are forwarded unchanged",
        rejected={"context_compression": "enabled"},
    ),
    _echoed("access_programs", {"cyber": "standard"}, "only `standard` is allowed"),
    _depends(
        "moderation",
        {"model": "omni-moderation-latest"},
        "a moderation model checks input and output: `score` reports the results, `block` stops flagged content",
    ),
    _supported("stop", ["\n"], "a vLLM extension; enforced by this server, whatever the upstream supports"),
    _depends("top_k", 40, _EXTENSION),
    _depends("seed", 1, _EXTENSION),
    _depends("repetition_penalty", 1.1, _EXTENSION),
    _depends("min_p", 0.1, _EXTENSION),
    _depends("chat_template_kwargs", {"enable_thinking": False}, _EXTENSION),
    _supported(
        "enable_response_messages",
        True,  # noqa: FBT003 - it is an example
        "a vLLM extension: the response contains `input_messages` and `output_messages`",
    ),
    _supported(
        "previous_input_messages",
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "a vLLM extension: the previous messages, instead of `previous_response_id`",
    ),
    _echoed("request_id", "mine-1", "a vLLM extension: a name for logs; the server still chooses the response's id"),
    _supported(
        "background_options",
        {"completion_window": "soonest"},
        "with `2h` and `8h`, the run may wait for a cheaper time; `wait_for_approval` and `approval_wait_seconds` are "
        "extensions: the response waits for approvals",
        rejected={"continuation_id": "c1"},
    ),
    _supported("background", True, "executed by a worker; requires `store`; not over WebSocket"),  # noqa: FBT003 - the same
    _supported(
        "conversation",
        "conv_…",
        'or `{"id": …}`; its items precede the input; one response at a time; requires `conversations.write`',
    ),
    _supported(
        "context_management",
        [{"type": "compaction", "compact_threshold": 50_000}],
        "beyond the threshold, or four fifths of the context window, a summary by the model replaces earlier items",
    ),
    SupportedParameter(Support.REJECTED, "multi_agent", {"enabled": True}, "a beta feature of OpenAI"),
)


def _tools(support: Support, note: str, *types: str) -> Iterable[SupportedTool]:
    return (SupportedTool(type=name, support=support, note=note) for name in types)


_SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
TOOLS = (
    SupportedTool(type="function", support=Support.SUPPORTED),
    SupportedTool(
        type="custom", support=Support.SUPPORTED, note="text input; a `regex` or `lark` grammar is validated afterwards"
    ),
    SupportedTool(type="namespace", support=Support.SUPPORTED, note="functions and custom tools under a common name"),
    SupportedTool(type="tool_search", support=Support.SUPPORTED, note="executed by the server or the client"),
    *_tools(
        Support.SUPPORTED, "executed by the client", "computer", "computer_use_preview", "local_shell", "apply_patch"
    ),
    SupportedTool(
        type="shell",
        support=Support.SUPPORTED,
        note="executed by the client, or in a container of the sandbox service, with skills",
    ),
    SupportedTool(
        type="mcp",
        support=Support.SUPPORTED,
        note="servers by URL or registered connector, with or without deferred tools; tunnels are rejected",
    ),
    SupportedTool(
        type="file_search",
        support=Support.SUPPORTED,
        note="semantic and keyword search in the team's vector stores; rejected without pgvector or an embedding model",
    ),
    *_tools(
        Support.CONFIGURED,
        "with a search engine configured by the operator: SearXNG, Tavily or Brave; otherwise left out with a warning",
        *_SEARCHES,
    ),
    SupportedTool(
        type="code_interpreter",
        support=Support.CONFIGURED,
        note="Python in a container of the sandbox service, without a network",
    ),
    SupportedTool(type="programmatic_tool_calling", support=Support.REJECTED, note="JavaScript is not supported"),
    SupportedTool(
        type="image_generation",
        support=Support.CONFIGURED,
        note="with a model whose upstream has `/images/generations`; no SVG or GIF",
    ),
)


def _items(note: str, *types: str, output: bool) -> Iterable[SupportedItem]:
    return (SupportedItem(type=name, input=True, output=output, note=note) for name in types)


ITEMS = (
    SupportedItem(
        type="message",
        input=True,
        output=True,
        note="`developer` is forwarded as `system` to models that do not support it",
    ),
    *_items("", "function_call", "custom_tool_call", output=True),
    *_items("a string or parts", "function_call_output", "custom_tool_call_output", output=False),
    SupportedItem(
        type="reasoning",
        input=True,
        output=True,
        note="with raw text if the model sends it; `encrypted_content` is encrypted by this server",
    ),
    SupportedItem(type="item_reference", input=True, output=False, note="refers to a stored item of the team"),
    *_items("", "computer_call", "shell_call", "local_shell_call", "apply_patch_call", "tool_search_call", output=True),
    *_items(
        "",
        "computer_call_output",
        "local_shell_call_output",
        "apply_patch_call_output",
        output=False,
    ),
    *_items("", "tool_search_output", "shell_call_output", output=True),
    *_items("adds tools from this point on", "additional_tools", output=False),
    *_items("changes effort or format from this point on", "configuration_update", output=False),
    *_items("", "mcp_list_tools", "mcp_call", "mcp_approval_request", output=True),
    SupportedItem(type="compaction", input=True, output=True, note="the context starts at the latest compaction"),
    SupportedItem(
        type="compaction_trigger", input=True, output=False, note="must be the last item; the response is a compaction"
    ),
    *_items("valid once, only for the call that was shown", "mcp_approval_response", output=True),
    *_items("results on request with `include`", "web_search_call", "file_search_call", output=True),
    *_items("outputs on request with `include`", "code_interpreter_call", output=True),
    *_items("with the image, which later turns can see", "image_generation_call", output=True),
    *_items(
        "accepted as history",
        "program",
        "program_output",
        output=False,
    ),
)
# Read from the union of events, so an event cannot be missing.
EVENTS: Sequence[str] = [kind.type for kind in get_args(Event)]


def update_tables(manual: str) -> str:
    """Return the manual with current tables between `<!-- begin name -->` and `<!-- end name -->`."""
    tables = {
        "endpoints": _table(
            ("endpoint", "scope", "notes"),
            (
                (
                    f"`{endpoint.method} /v1{endpoint.template}`",
                    f"`{endpoint.scope}`" if endpoint.scope else "",
                    endpoint.note,
                )
                for endpoint in (*ENDPOINTS, websocket.ENDPOINT)
            ),
        ),
        "errors": _table(
            ("status", "code", "type", "meaning", "remedy"),
            (
                (str(status), f"`{code}`" if code else "null", f"`{kind}`", meaning, REMEDIES[status, code])
                for status, kind, code, meaning in error_table()
            ),
        ),
        "parameters": _table(("parameter", "", "example", "notes"), map(_parameter, PARAMETERS)),
        "tools": _table(("tool", "", "notes"), ((f"`{tool.type}`", tool.support, tool.note) for tool in TOOLS)),
        "items": _table(
            ("item", "in `input`", "in `output`", "notes"),
            ((f"`{item.type}`", "yes" * item.input, "yes" * item.output, item.note) for item in ITEMS),
        ),
        "sdk": _table(
            ("endpoint, parameter or value", "reason"),
            (("<br>".join(f"`{pattern}`" for pattern in decision.patterns), decision.reason) for decision in DECISIONS),
        ),
        # A list, not a table: the names of events need no notes.
        "events": "\n".join(f"- `{name}`" for name in EVENTS),
    }
    return _REGION.sub(lambda match: f"<!-- begin {match[1]} -->\n{tables[match[1]]}\n<!-- end {match[1]} -->", manual)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _parameter(one: SupportedParameter) -> Sequence[str]:
    note = one.note if one.rejected is None else f"{one.note}; {_json(one.rejected)} is rejected"
    return f"`{one.name}`", one.support, _json(one.example), note


def _json(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"
