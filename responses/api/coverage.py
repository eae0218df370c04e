"""Table of the supported parts of the OpenAI API: the source of docs/api-coverage.md, and checked by tests.

Run `manage.py api_coverage` after every change here: it generates the tables of docs/api-coverage.md.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args

from responses.engine.events.types import Event

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedEndpoint:
    """Method and path below /v1, and the scope that a key needs for it."""

    method: str
    path: str
    scope: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedParameter:
    """Parameter of `POST /v1/responses`. `rejected`: a value that OpenAI accepts and this server does not."""

    name: str
    support: Support
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
    """Type of item; `input` and `output`: allowed in requests, contained in responses."""

    type: str
    input: bool
    output: bool
    note: str = ""


def _endpoint(line: str, scope: str, note: str = "") -> SupportedEndpoint:
    method, path = line.split()
    return SupportedEndpoint(method=method, path=path, scope=scope, note=note)


ENDPOINTS = (
    _endpoint("POST /responses", "responses.write", "JSON, or server-sent events with `stream: true`"),
    _endpoint("GET /responses", "responses.read", "extension: lists the team's stored responses, see below"),
    _endpoint("GET /responses/{id}", "responses.read", "JSON; with `stream=true` the events of the run, see below"),
    _endpoint(
        "DELETE /responses/{id}", "responses.delete", "a queued or active background response is cancelled first"
    ),
    _endpoint(
        "POST /responses/{id}/cancel",
        "responses.write",
        "queued and active background responses; a response that has ended is returned unchanged",
    ),
    _endpoint(
        "GET /responses/{id}/input_items",
        "responses.read",
        "the items of the previous responses, then the response's own input",
    ),
    _endpoint(
        "POST /responses/input_tokens",
        "responses.write",
        "counted by the upstream if it can, otherwise estimated, see below",
    ),
    _endpoint(
        "POST /responses/compact",
        "responses.write",
        "a summary by the model, encrypted for the team; nothing is stored",
    ),
    _endpoint(
        "GET /models",
        "models.read",
        "the models that the key may use; models that are only routed by `*` are not listed",
    ),
    _endpoint("GET /models/{id}", "models.read", "ids may contain slashes"),
    _endpoint("POST /chat/completions", "chat_completions.write", "forwarded to the upstream, see below"),
    _endpoint("GET /chat/completions", "chat_completions.read", "completions that were created with `store: true`"),
    _endpoint("GET /chat/completions/{id}", "chat_completions.read"),
    _endpoint("POST /chat/completions/{id}", "chat_completions.write", "replaces the metadata"),
    _endpoint("DELETE /chat/completions/{id}", "chat_completions.delete"),
    _endpoint("GET /chat/completions/{id}/messages", "chat_completions.read", "the input messages of the completion"),
    _endpoint("POST /conversations", "conversations.write", "with up to 20 items, including references"),
    _endpoint("GET /conversations", "conversations.read", "extension: lists the team's conversations, see below"),
    _endpoint("GET /conversations/{id}", "conversations.read"),
    _endpoint("POST /conversations/{id}", "conversations.write", "replaces the metadata"),
    _endpoint("DELETE /conversations/{id}", "conversations.delete", "items that responses or forks show are kept"),
    _endpoint("POST /conversations/{id}/items", "conversations.write", "up to 20 at a time"),
    _endpoint("GET /conversations/{id}/items", "conversations.read"),
    _endpoint("GET /conversations/{id}/items/{item_id}", "conversations.read"),
    _endpoint("DELETE /conversations/{id}/items/{item_id}", "conversations.write", "returns the conversation"),
    _endpoint(
        "POST /conversations/{id}/fork",
        "conversations.write",
        "extension: a new conversation that shares the items up to `after`, or all items",
    ),
    _endpoint(
        "POST /conversations/{id}/cancel",
        "conversations.write",
        "extension: cancels the run that has locked the conversation, if any; returns the conversation",
    ),
    _endpoint("GET /conversations/{id}/export", "conversations.read", "extension: all items as JSON Lines"),
    _endpoint("POST /files", "files.write", "multipart, up to 512 MiB; OpenAI's purposes and `expires_after`"),
    _endpoint("GET /files", "files.read"),
    _endpoint("GET /files/{id}", "files.read"),
    _endpoint("GET /files/{id}/content", "files.read"),
    _endpoint("DELETE /files/{id}", "files.write", "also removes the file from vector stores"),
    _endpoint("POST /uploads", "files.write", "a file that is uploaded in parts within an hour, up to 512 MiB"),
    _endpoint("POST /uploads/{id}/parts", "files.write", "multipart, up to 64 MiB"),
    _endpoint(
        "POST /uploads/{id}/complete", "files.write", "assembles the parts in the given order; `md5` is verified"
    ),
    _endpoint("POST /uploads/{id}/cancel", "files.write"),
    _endpoint("POST /vector_stores", "vector_stores.write", "see [file search](howto/file-search.md)"),
    _endpoint("GET /vector_stores", "vector_stores.read"),
    _endpoint("GET /vector_stores/{id}", "vector_stores.read"),
    _endpoint("POST /vector_stores/{id}", "vector_stores.write"),
    _endpoint("DELETE /vector_stores/{id}", "vector_stores.delete", "its files are kept"),
    _endpoint("POST /vector_stores/{id}/search", "vector_stores.read", "`rewrite_query: true` is rejected"),
    _endpoint(
        "POST /vector_stores/{id}/files", "vector_stores.write", "a file that is already attached is processed again"
    ),
    _endpoint("GET /vector_stores/{id}/files", "vector_stores.read"),
    _endpoint("GET /vector_stores/{id}/files/{file_id}", "vector_stores.read"),
    _endpoint("POST /vector_stores/{id}/files/{file_id}", "vector_stores.write", "replaces the attributes"),
    _endpoint("DELETE /vector_stores/{id}/files/{file_id}", "vector_stores.write", "the file itself is kept"),
    _endpoint(
        "GET /vector_stores/{id}/files/{file_id}/content",
        "vector_stores.read",
        "the passages that the file was split into",
    ),
    _endpoint("POST /vector_stores/{id}/file_batches", "vector_stores.write", "up to 2,000 files"),
    _endpoint("GET /vector_stores/{id}/file_batches/{batch_id}", "vector_stores.read"),
    _endpoint("POST /vector_stores/{id}/file_batches/{batch_id}/cancel", "vector_stores.write"),
    _endpoint("GET /vector_stores/{id}/file_batches/{batch_id}/files", "vector_stores.read"),
    _endpoint(
        "POST /batches",
        "batches.write",
        "for responses, chat completions or embeddings; the key also needs the scope of that endpoint",
    ),
    _endpoint("GET /batches", "batches.read"),
    _endpoint("GET /batches/{id}", "batches.read"),
    _endpoint("POST /batches/{id}/cancel", "batches.write", "active requests are cancelled immediately"),
    _endpoint(
        "POST /webhook_endpoints",
        "webhooks.write",
        "https URLs on port 443 with public addresses, and those allowed by `EGRESS_ALLOW`; up to 20 per team",
    ),
    _endpoint("GET /webhook_endpoints", "webhooks.read"),
    _endpoint("GET /webhook_endpoints/{id}", "webhooks.read"),
    _endpoint("POST /webhook_endpoints/{id}", "webhooks.write"),
    _endpoint("DELETE /webhook_endpoints/{id}", "webhooks.write", "including its deliveries"),
    _endpoint("POST /webhook_endpoints/{id}/rotate_secret", "webhooks.write"),
    _endpoint("POST /webhook_endpoints/{id}/test", "webhooks.write", "sends a sample event immediately"),
    _endpoint("GET /webhook_event_types", "webhooks.read", "`response.*` of background responses, and `batch.*`"),
    _endpoint(
        "POST /containers",
        "containers.write",
        "requires the sandbox service; no network, no skills; expires after at most 20 minutes without activity",
    ),
    _endpoint("GET /containers", "containers.read"),
    _endpoint("GET /containers/{id}", "containers.read"),
    _endpoint("DELETE /containers/{id}", "containers.delete", "ends all processes in it"),
    _endpoint("POST /containers/{id}/files", "containers.write", "multipart up to 64 MiB, or a `file_id`"),
    _endpoint("GET /containers/{id}/files", "containers.read", "the regular files below `/mnt/data`"),
    _endpoint("GET /containers/{id}/files/{file_id}", "containers.read"),
    _endpoint("GET /containers/{id}/files/{file_id}/content", "containers.read"),
    _endpoint("DELETE /containers/{id}/files/{file_id}", "containers.delete"),
    _endpoint("POST /images/generations", "images.write", "forwarded to the upstream, see below"),
    _endpoint("POST /images/edits", "images.write", "multipart, forwarded in the same way"),
    _endpoint("POST /embeddings", "embeddings.write", "forwarded to the upstream, see below"),
    _endpoint("POST /moderations", "moderations.write", "forwarded to the upstream, see below"),
)


def _supported(name: str, example: Any, note: str = "", *, rejected: Any = None) -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.SUPPORTED, example=example, note=note, rejected=rejected)


def _echoed(name: str, example: Any, note: str = "", *, rejected: Any = None) -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.ECHOED, example=example, note=note, rejected=rejected)


def _depends(name: str, example: Any, note: str = "") -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.DEPENDS, example=example, note=note)


def _rejected(name: str, example: Any, note: str = "") -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.REJECTED, example=example, note=note)


_FORWARDED = "forwarded"
_EXTENSION = "a vLLM extension; forwarded to models whose settings allow it"
PARAMETERS = (
    _supported("model", "demo", "selects the upstream; `model_not_found` if it is unknown or not allowed for the key"),
    _supported("input", "Hi", "a string or a list of items, see below"),
    _supported("instructions", "Be brief.", "the first system message; not inherited along `previous_response_id`"),
    _supported("previous_response_id", "resp_…", "a stored response of the team that has ended"),
    _supported("prompt", {"id": "pmpt_…"}, "a stored prompt of the team, with its variables"),
    _supported("stream", True),  # noqa: FBT003 - an example of a value
    _supported("stream_options", {"include_obfuscation": False}, "only with `stream`; controls the padding of deltas"),
    _supported("store", False, "default true; with false no content is stored"),  # noqa: FBT003 - the same
    _supported(
        "metadata",
        {"order": "12"},
        "16 pairs, keys up to 64 and values up to 512 characters; lists can be filtered by it",
    ),
    _supported("tools", [{"type": "function", "name": "look"}], "see below"),
    _supported("tool_choice", "auto", "`none`, `auto`, `required`, one tool, or `allowed_tools`"),
    _supported("parallel_tool_calls", False, "with false only the first call of a turn is used"),  # noqa: FBT003
    _supported("max_tool_calls", 3, "the server executes no further calls of its tools and informs the model"),
    _supported("max_output_tokens", 100, "at least 16; forwarded as `max_completion_tokens`"),
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
    _rejected("multi_agent", {"enabled": True}, "a beta feature of OpenAI"),
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
        note="executed by the client, or in a container of the sandbox service; skills are rejected",
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
        Support.CONFIGURED, "with a search engine configured by the operator: SearXNG, Tavily or Brave", *_SEARCHES
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
    *_items("valid once, for the call as it was shown", "mcp_approval_response", output=False),
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
EVENTS: Sequence[str] = [get_args(kind.__annotations__["type"])[0] for kind in get_args(Event)]


def update_tables(manual: str) -> str:
    """Return the manual with current tables between `<!-- begin name -->` and `<!-- end name -->`."""
    return _REGION.sub(
        lambda match: f"<!-- begin {match[1]} -->\n{_TABLES[match[1]]()}\n<!-- end {match[1]} -->", manual
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _endpoints() -> str:
    rows = ((f"`{one.method} /v1{one.path}`", f"`{one.scope}`", one.note) for one in ENDPOINTS)
    return _table(("endpoint", "scope", "notes"), rows)


def _parameters() -> str:
    return _table(("parameter", "", "example", "notes"), map(_parameter, PARAMETERS))


def _parameter(one: SupportedParameter) -> Sequence[str]:
    note = one.note
    if one.rejected is not None:
        note += f"; {_json(one.rejected)} is rejected"
    return f"`{one.name}`", one.support, _json(one.example), note


def _json(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _tool_types() -> str:
    return _table(("tool", "", "notes"), ((f"`{one.type}`", one.support, one.note) for one in TOOLS))


def _item_types() -> str:
    rows = ((f"`{one.type}`", "yes" * one.input, "yes" * one.output, one.note) for one in ITEMS)
    return _table(("item", "in `input`", "in `output`", "notes"), rows)


# A list, not a table: the names of events need no notes.
def _event_types() -> str:
    return "\n".join(f"- `{name}`" for name in EVENTS)


_TABLES: dict[str, Callable[[], str]] = {
    "endpoints": _endpoints,
    "parameters": _parameters,
    "tools": _tool_types,
    "items": _item_types,
    "events": _event_types,
}
