"""What this server does of the OpenAI API, in one table. The manual is written from it, and tests hold both to it.

`manage.py api_coverage` writes the tables of docs/api-coverage.md anew; do so whenever something here changes.
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
    """What becomes of something that the API knows."""

    HONOURED = "honoured"
    ECHOED = "echoed"
    DEPENDS = "depends on the model"
    CONFIGURED = "needs a server that has it"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedEndpoint:
    """A method of a URL below /v1, and the scope that a key needs for it."""

    method: str
    path: str
    scope: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedParameter:
    """A parameter of `POST /v1/responses`: a value to show it, and one that is refused although the wire knows it."""

    name: str
    support: Support
    example: Any
    note: str = ""
    refused: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedTool:
    """A type of tool."""

    type: str
    support: Support
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedItem:
    """A type of item: whether requests may bring it, and whether responses have it."""

    type: str
    input: bool
    output: bool
    note: str = ""


def _endpoint(line: str, scope: str, note: str = "") -> SupportedEndpoint:
    method, path = line.split()
    return SupportedEndpoint(method=method, path=path, scope=scope, note=note)


ENDPOINTS = (
    _endpoint("POST /responses", "responses.write", "JSON, or server-sent events with `stream: true`"),
    _endpoint("GET /responses", "responses.read", "our extension: a team's stored responses, see below"),
    _endpoint("GET /responses/{id}", "responses.read", "JSON; with `stream=true` the events of its run, see below"),
    _endpoint("DELETE /responses/{id}", "responses.delete", "one that a worker runs or will run is cancelled first"),
    _endpoint(
        "POST /responses/{id}/cancel",
        "responses.write",
        "background responses, waiting or running; one that has ended is returned as it is",
    ),
    _endpoint("GET /responses/{id}/input_items", "responses.read", "the chain before the response, and its own input"),
    _endpoint(
        "POST /responses/input_tokens",
        "responses.write",
        "asked of upstreams that can count; or an estimate, see below",
    ),
    _endpoint(
        "POST /responses/compact", "responses.write", "notes of the model, sealed for the team; nothing is stored"
    ),
    _endpoint(
        "GET /models", "models.read", "the named models that the key may use; what only `*` routes is not listed"
    ),
    _endpoint("GET /models/{id}", "models.read", "ids may contain slashes"),
    _endpoint("POST /chat/completions", "chat_completions.write", "passed on to the same upstreams, see below"),
    _endpoint("GET /chat/completions", "chat_completions.read", "those that were created with `store: true`"),
    _endpoint("GET /chat/completions/{id}", "chat_completions.read"),
    _endpoint("POST /chat/completions/{id}", "chat_completions.write", "replaces the metadata"),
    _endpoint("DELETE /chat/completions/{id}", "chat_completions.delete"),
    _endpoint("GET /chat/completions/{id}/messages", "chat_completions.read", "what the completion answers"),
    _endpoint("POST /conversations", "conversations.write", "up to 20 items, references among them"),
    _endpoint("GET /conversations", "conversations.read", "our extension: a team's conversations, see below"),
    _endpoint("GET /conversations/{id}", "conversations.read"),
    _endpoint("POST /conversations/{id}", "conversations.write", "replaces the metadata"),
    _endpoint(
        "DELETE /conversations/{id}", "conversations.delete", "its items stay where responses or forks show them"
    ),
    _endpoint("POST /conversations/{id}/items", "conversations.write", "up to 20 at a time"),
    _endpoint("GET /conversations/{id}/items", "conversations.read"),
    _endpoint("GET /conversations/{id}/items/{item_id}", "conversations.read"),
    _endpoint("DELETE /conversations/{id}/items/{item_id}", "conversations.write", "answers with the conversation"),
    _endpoint(
        "POST /conversations/{id}/fork",
        "conversations.write",
        "our extension: a new conversation with the items up to `after`, or all; nothing is copied",
    ),
    _endpoint(
        "POST /conversations/{id}/cancel",
        "conversations.write",
        "our extension: ends the run that holds the conversation, if there is one; answers with the conversation",
    ),
    _endpoint("GET /conversations/{id}/export", "conversations.read", "our extension: every item as JSON Lines"),
    _endpoint(
        "POST /files", "files.write", "multipart, up to 512 MiB; purposes and `expires_after` as OpenAI has them"
    ),
    _endpoint("GET /files", "files.read"),
    _endpoint("GET /files/{id}", "files.read"),
    _endpoint("GET /files/{id}/content", "files.read"),
    _endpoint("DELETE /files/{id}", "files.write", "also takes it out of vector stores"),
    _endpoint("POST /uploads", "files.write", "a file that comes in parts within an hour, up to 512 MiB"),
    _endpoint("POST /uploads/{id}/parts", "files.write", "multipart, up to 64 MiB"),
    _endpoint("POST /uploads/{id}/complete", "files.write", "in the order that is named; `md5` is checked"),
    _endpoint("POST /uploads/{id}/cancel", "files.write"),
    _endpoint("POST /vector_stores", "vector_stores.write", "see [file search](howto/file-search.md)"),
    _endpoint("GET /vector_stores", "vector_stores.read"),
    _endpoint("GET /vector_stores/{id}", "vector_stores.read"),
    _endpoint("POST /vector_stores/{id}", "vector_stores.write"),
    _endpoint("DELETE /vector_stores/{id}", "vector_stores.delete", "its files stay"),
    _endpoint("POST /vector_stores/{id}/search", "vector_stores.read", "`rewrite_query: true` is refused"),
    _endpoint("POST /vector_stores/{id}/files", "vector_stores.write", "a file that is there already is read again"),
    _endpoint("GET /vector_stores/{id}/files", "vector_stores.read"),
    _endpoint("GET /vector_stores/{id}/files/{file_id}", "vector_stores.read"),
    _endpoint("POST /vector_stores/{id}/files/{file_id}", "vector_stores.write", "replaces the attributes"),
    _endpoint("DELETE /vector_stores/{id}/files/{file_id}", "vector_stores.write", "the file itself stays"),
    _endpoint("GET /vector_stores/{id}/files/{file_id}/content", "vector_stores.read", "the passages of the file"),
    _endpoint("POST /vector_stores/{id}/file_batches", "vector_stores.write", "up to 2,000 files"),
    _endpoint("GET /vector_stores/{id}/file_batches/{batch_id}", "vector_stores.read"),
    _endpoint("POST /vector_stores/{id}/file_batches/{batch_id}/cancel", "vector_stores.write"),
    _endpoint("GET /vector_stores/{id}/file_batches/{batch_id}/files", "vector_stores.read"),
    _endpoint(
        "POST /batches", "batches.write", "of responses, chat completions or embeddings; the key needs their scope, too"
    ),
    _endpoint("GET /batches", "batches.read"),
    _endpoint("GET /batches/{id}", "batches.read"),
    _endpoint("POST /batches/{id}/cancel", "batches.write", "stops at once what is under way"),
    _endpoint(
        "POST /webhook_endpoints",
        "webhooks.write",
        "https on port 443 and public addresses, unless `EGRESS_ALLOW` opens more; 20 for a team",
    ),
    _endpoint("GET /webhook_endpoints", "webhooks.read"),
    _endpoint("GET /webhook_endpoints/{id}", "webhooks.read"),
    _endpoint("POST /webhook_endpoints/{id}", "webhooks.write"),
    _endpoint("DELETE /webhook_endpoints/{id}", "webhooks.write", "with its deliveries"),
    _endpoint("POST /webhook_endpoints/{id}/rotate_secret", "webhooks.write"),
    _endpoint("POST /webhook_endpoints/{id}/test", "webhooks.write", "posts a sample event at once"),
    _endpoint("GET /webhook_event_types", "webhooks.read", "`response.*` of background responses, and `batch.*`"),
    _endpoint(
        "POST /containers",
        "containers.write",
        "needs the sandbox service; no network, no skills; expires after at most 20 idle minutes",
    ),
    _endpoint("GET /containers", "containers.read"),
    _endpoint("GET /containers/{id}", "containers.read"),
    _endpoint("DELETE /containers/{id}", "containers.delete", "ends all that runs in it"),
    _endpoint("POST /containers/{id}/files", "containers.write", "multipart up to 64 MiB, or a `file_id`"),
    _endpoint("GET /containers/{id}/files", "containers.read", "the plain files below `/mnt/data`"),
    _endpoint("GET /containers/{id}/files/{file_id}", "containers.read"),
    _endpoint("GET /containers/{id}/files/{file_id}/content", "containers.read"),
    _endpoint("DELETE /containers/{id}/files/{file_id}", "containers.delete"),
    _endpoint("POST /images/generations", "images.write", "passed on to the same upstreams, see below"),
    _endpoint("POST /images/edits", "images.write", "multipart, passed on in the same way"),
    _endpoint("POST /embeddings", "embeddings.write", "passed on to the same upstreams, see below"),
    _endpoint("POST /moderations", "moderations.write", "passed on to the same upstreams, see below"),
)


def _honoured(name: str, example: Any, note: str = "", *, refused: Any = None) -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.HONOURED, example=example, note=note, refused=refused)


def _echoed(name: str, example: Any, note: str = "", *, refused: Any = None) -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.ECHOED, example=example, note=note, refused=refused)


def _depends(name: str, example: Any, note: str = "") -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.DEPENDS, example=example, note=note)


def _refused(name: str, example: Any, note: str = "") -> SupportedParameter:
    return SupportedParameter(name=name, support=Support.REFUSED, example=example, note=note)


_SENT_ON = "sent on"
_EXTENSION = "an extension of vLLM's; sent on to models whose settings say that they take it"
PARAMETERS = (
    _honoured("model", "demo", "routed to an upstream; unknown ones, and those not for the key, get `model_not_found`"),
    _honoured("input", "Hi", "a string or a list of items, see below"),
    _honoured("instructions", "Be brief.", "the first system message; not inherited along `previous_response_id`"),
    _honoured("previous_response_id", "resp_…", "of a stored response of the team that has ended"),
    _honoured("prompt", {"id": "pmpt_…"}, "a prompt that the team has stored, with its variables"),
    _honoured("stream", True),  # noqa: FBT003 - an example of a value
    _honoured(
        "stream_options", {"include_obfuscation": False}, "only together with `stream`; deltas are padded or not"
    ),
    _honoured("store", False, "default true; with false nothing of the content is kept"),  # noqa: FBT003 - the same
    _honoured(
        "metadata", {"order": "12"}, "16 pairs, keys up to 64 and values up to 512 characters; lists filter by it"
    ),
    _honoured("tools", [{"type": "function", "name": "look"}], "see below"),
    _honoured("tool_choice", "auto", "`none`, `auto`, `required`, one tool, or `allowed_tools`"),
    _honoured("parallel_tool_calls", False, "with false an upstream is held to its first call"),  # noqa: FBT003
    _honoured("max_tool_calls", 3, "further calls of tools of the server are not made, and the model is told so"),
    _honoured("max_output_tokens", 100, "at least 16; sent on as `max_completion_tokens`"),
    _honoured("temperature", 0.5, _SENT_ON),
    _honoured("top_p", 0.5, _SENT_ON),
    _honoured("presence_penalty", 0.5, _SENT_ON),
    _honoured("frequency_penalty", 0.5, _SENT_ON),
    _honoured("top_logprobs", 3, "with `message.output_text.logprobs` included; otherwise echoed"),
    _honoured("include", ["message.output_text.logprobs"], "what is shown of items beside the point"),
    _honoured("text", {"verbosity": "low"}, "an answer that breaks its format ends `failed`, never `completed`"),
    _honoured(
        "reasoning",
        {"effort": "low"},
        "`effort`, `summary`, `context`; of modes only `standard`",
        refused={"mode": "pro"},
    ),
    _honoured("truncation", "auto", "`auto` drops items from the beginning; `disabled`: too long is an error"),
    _honoured("service_tier", "flex", "sent on; the response ends with the tier that the upstream reports"),
    _honoured("user", "u1", "sent on; kept as the response's end user"),
    _honoured("safety_identifier", "u1", "the same"),
    _honoured("prompt_cache_key", "k", _SENT_ON),
    _honoured("prompt_cache_retention", "24h", _SENT_ON),
    _honoured("prompt_cache_options", {"mode": "implicit"}, "sent on; `prewarm` makes a response without an answer"),
    _honoured("generate", False, "false: a response without an answer, to continue from"),  # noqa: FBT003 - the same
    _echoed(
        "image",
        {"context_compression": "auto"},
        "images are sent on as they are",
        refused={"context_compression": "enabled"},
    ),
    _echoed("access_programs", {"cyber": "standard"}, "others than `standard` are forbidden"),
    _depends(
        "moderation",
        {"model": "omni-moderation-latest"},
        "a model with that endpoint judges input and output: `score` shows what it found, `block` stops it",
    ),
    _depends("top_k", 40, _EXTENSION),
    _depends("seed", 1, _EXTENSION),
    _depends("repetition_penalty", 1.1, _EXTENSION),
    _depends("min_p", 0.1, _EXTENSION),
    _depends("chat_template_kwargs", {"enable_thinking": False}, _EXTENSION),
    _honoured(
        "enable_response_messages",
        True,  # noqa: FBT003 - it is an example
        "an extension of vLLM's: the response has `input_messages` and `output_messages`",
    ),
    _honoured(
        "previous_input_messages",
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "an extension of vLLM's: a conversation in such messages, in place of `previous_response_id`",
    ),
    _echoed("request_id", "mine-1", "an extension of vLLM's: a name for logs; the response's id is the server's"),
    _honoured("background", True, "run by a worker; needs `store`, not over WebSocket"),  # noqa: FBT003 - the same
    _honoured(
        "conversation",
        "conv_…",
        'or `{"id": …}`; read before the input, continued by one response at a time; needs `conversations.write`',
    ),
    _honoured(
        "context_management",
        [{"type": "compaction", "compact_threshold": 50_000}],
        "past the threshold, or four fifths of the window, the model's own notes take the place of what was said",
    ),
    _refused("multi_agent", {"enabled": True}, "a beta of OpenAI's"),
)


def _tools(support: Support, note: str, *types: str) -> Iterable[SupportedTool]:
    return (SupportedTool(type=name, support=support, note=note) for name in types)


_SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
TOOLS = (
    SupportedTool(type="function", support=Support.HONOURED),
    SupportedTool(
        type="custom", support=Support.HONOURED, note="text; a `regex` or `lark` grammar is checked afterwards"
    ),
    SupportedTool(type="namespace", support=Support.HONOURED, note="functions and custom tools under one name"),
    SupportedTool(type="tool_search", support=Support.HONOURED, note="executed by the server or by the client"),
    *_tools(Support.HONOURED, "run by the client", "computer", "computer_use_preview", "local_shell", "apply_patch"),
    SupportedTool(
        type="shell",
        support=Support.HONOURED,
        note="run by the client, or in a container of the sandbox service; skills are refused",
    ),
    SupportedTool(
        type="mcp",
        support=Support.HONOURED,
        note="servers by URL or by a registered connector, their tools deferred or not; tunnels are refused",
    ),
    SupportedTool(
        type="file_search",
        support=Support.HONOURED,
        note="in vector stores of the team, by meaning and words; refused without pgvector or an embedding model",
    ),
    *_tools(Support.CONFIGURED, "with a search engine of the operator's: SearXNG, Tavily or Brave", *_SEARCHES),
    SupportedTool(
        type="code_interpreter",
        support=Support.CONFIGURED,
        note="Python in a container of the sandbox service, without a network",
    ),
    SupportedTool(type="programmatic_tool_calling", support=Support.REFUSED, note="there is no JavaScript"),
    SupportedTool(
        type="image_generation",
        support=Support.CONFIGURED,
        note="with a model whose server has `/images/generations`; no SVG, no GIF",
    ),
)


def _items(note: str, *types: str, output: bool) -> Iterable[SupportedItem]:
    return (SupportedItem(type=name, input=True, output=output, note=note) for name in types)


ITEMS = (
    SupportedItem(
        type="message", input=True, output=True, note="`developer` is sent on as `system` where models do not know it"
    ),
    *_items("", "function_call", "custom_tool_call", output=True),
    *_items("a string or parts", "function_call_output", "custom_tool_call_output", output=False),
    SupportedItem(
        type="reasoning", input=True, output=True, note="raw text where the model sends it; `encrypted_content` is ours"
    ),
    SupportedItem(type="item_reference", input=True, output=False, note="to an item that the team has stored"),
    *_items("", "computer_call", "shell_call", "local_shell_call", "apply_patch_call", "tool_search_call", output=True),
    *_items(
        "",
        "computer_call_output",
        "local_shell_call_output",
        "apply_patch_call_output",
        output=False,
    ),
    *_items("", "tool_search_output", "shell_call_output", output=True),
    *_items("adds tools in the middle of a conversation", "additional_tools", output=False),
    *_items("changes effort or format from there on", "configuration_update", output=False),
    *_items("", "mcp_list_tools", "mcp_call", "mcp_approval_request", output=True),
    SupportedItem(type="compaction", input=True, output=True, note="the context starts at the latest one"),
    SupportedItem(
        type="compaction_trigger", input=True, output=False, note="the last item; the response is a compaction"
    ),
    *_items("counts once, for the call as it was shown", "mcp_approval_response", output=False),
    *_items("with what it found; shown by `include`", "web_search_call", "file_search_call", output=True),
    *_items("with its outputs; shown by `include`", "code_interpreter_call", output=True),
    *_items("with its picture, which later turns see", "image_generation_call", output=True),
    *_items(
        "as history",
        "program",
        "program_output",
        output=False,
    ),
)
EVENTS: Sequence[str] = [get_args(kind.__annotations__["type"])[0] for kind in get_args(Event)]


def update_tables(manual: str) -> str:
    """The manual with its tables, between `<!-- begin name -->` and `<!-- end name -->`, as they are now."""
    return _REGION.sub(
        lambda match: f"<!-- begin {match[1]} -->\n{_TABLES[match[1]]()}\n<!-- end {match[1]} -->", manual
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _endpoints() -> str:
    rows = ((f"`{one.method} /v1{one.path}`", f"`{one.scope}`", one.note) for one in ENDPOINTS)
    return _table(("endpoint", "scope of the key", "notes"), rows)


def _parameters() -> str:
    return _table(("parameter", "", "for example", "notes"), map(_parameter, PARAMETERS))


def _parameter(one: SupportedParameter) -> Sequence[str]:
    note = one.note
    if one.refused is not None:
        note += f"; {_json(one.refused)} is refused"
    return f"`{one.name}`", one.support, _json(one.example), note


def _json(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _tool_types() -> str:
    return _table(("tool", "", "notes"), ((f"`{one.type}`", one.support, one.note) for one in TOOLS))


def _item_types() -> str:
    rows = ((f"`{one.type}`", "yes" * one.input, "yes" * one.output, one.note) for one in ITEMS)
    return _table(("item", "in `input`", "in `output`", "notes"), rows)


def _event_types() -> str:
    return "\n".join(f"- `{name}`" for name in EVENTS)


_TABLES: dict[str, Callable[[], str]] = {
    "endpoints": _endpoints,
    "parameters": _parameters,
    "tools": _tool_types,
    "items": _item_types,
    "events": _event_types,
}
