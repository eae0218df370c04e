"""All intended deviations of the API from the types of the SDK and of the Open Responses document, with reasons."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

EXTRA_KEYS: Mapping[str, str] = {
    "Response.input_messages": "an extension of vLLM, only on request",
    "Response.output_messages": "the same",
    "Response.request_id": "the same",
    "Response.pending_decisions": "an extension, only while a response waits for decisions of people",
    "OutputTokensDetails.tool_output_tokens": "the same, where hosted tools have answered",
    "ResponseFunctionWebSearch.results": "the SDK allows to include it, but has no type for it",
    "Response.store": "OpenAI and the Open Responses document have it, the SDK's type does not",
    "Response.presence_penalty": "required by the Open Responses document",
    "Response.frequency_penalty": "required by the Open Responses document",
    "*.obfuscation": "OpenAI pads every delta since 2025; the SDK has it in the type of one event only",
    "*.later": "tests send it as an additional field of items of other servers, which are kept",
    "ResponseFunctionCallArgumentsDoneEvent.name": "older SDKs have and read it",
    "ResponseFunctionCallArgumentsWsDone.name": "the same",
    "ResponseCustomToolCall.status": "the types of stored calls and of all other calls have it",
    "ResponseCustomToolCall.created_by": "the same, for items of conversations",
    "ResponseCustomToolCallOutput.status": "the same",
    "ResponseCustomToolCallOutput.created_by": "the same",
    "Logprob.bytes": "OpenAI and the Open Responses document have it, the types of events do not",
    "LogprobTopLogprob.bytes": "the same",
    "VectorStore.description": "requests set it, but the type of the response lacks it",
    "ResponseWsCreated.headers": "a connection has no response headers; OpenAI's own clients read headers from events",
    "WebSearchTool.search_content_types": "Codex sends it, and responses show the tools of the request",
    "WebSearchTool.indexed_web_access": "the same",
    "DataResultOrganizationCostsResult.unpriced_requests": "OpenAI has a price for everything",
    "ChatCompletionMessage.reasoning_content": "servers of open models send the reasoning in it, and it is forwarded",
    "ChatCompletionStoreMessage.name": "the SDK's type covers only assistant messages; OpenAI returns all messages",
    "ChatCompletionStoreMessage.tool_call_id": "the same; without it, tool messages cannot be matched to calls",
}
"""Additional keys with the reason, as `Type.key` of the SDK's types; `*` is any type."""

UNCHECKED: Mapping[str, str] = {
    "GET /files/[^/]+/content": "the bytes of a file",
    "GET /containers/[^/]+/files/[^/]+/content": "the bytes of a file",
    "GET /skills/[^/]+/content": "the bytes of a file",
    "GET /skills/[^/]+/versions/[^/]+/content": "the bytes of a file",
    "GET /responses/[^/]+/(attempts|timeline)": "extensions, whose types are in the OpenAPI document",
    "GET /conversations/[^/]+/export": "JSON lines, each an item",
    "POST /(embeddings|moderations|completions|images/[a-z]+|audio/[a-z]+)": (
        "forwarded from the upstream; test_types.py has complete bodies, other tests short ones"
    ),
}
"""Responses without a type, as patterns of method and path."""


@dataclass(frozen=True)
class _Value:
    """A value unknown to the SDK's type: the reason, and a known value that replaces it for validation."""

    why: str
    known: Any


VALUES: Mapping[tuple[str, Any], _Value] = {
    ("code", "model_not_found"): _Value("same code as for requests without streaming", "server_error"),
    ("code", "context_length_exceeded"): _Value(
        "same code as for requests without streaming, which clients check", "invalid_prompt"
    ),
    ("code", "insufficient_quota"): _Value("OpenAI sends it, but the SDK's type lacks it", "server_error"),
    ("code", "approval_expired"): _Value("an extension: a response that has waited for an approval", "server_error"),
    ("code", "server_is_overloaded"): _Value("OpenAI sends it, but the SDK's type lacks it", "server_error"),
    **{
        ("code", code): _Value("an extension: the model's server gives no answer", "server_error")
        for code in ("upstream_unreachable", "upstream_timeout")
    },
    ("code", "server_is_shutting_down"): _Value("an extension, sent over WebSocket only", "server_error"),
    ("code", "content_policy_violation"): _Value(
        "same code as for requests without streaming; the type has only OpenAI's own policies", "server_error"
    ),
    **{
        ("role", role): _Value("the SDK types all messages of a stored completion as assistant messages", "assistant")
        for role in ("developer", "system", "user", "tool")
    },
    ("purpose", "evals"): _Value("files can be uploaded for it, but the type of the response lacks it", "vision"),
}
"""Values unknown to the SDK's types, by key."""

CHOICES: Mapping[str, str] = {
    "web_search": "the SDK's type of `tool_choice` knows only the preview name of the tool",
    "web_search_2025_08_26": "the same",
}
"""Tools allowed in `tool_choice` but unknown to the SDK's type."""

TOOLS: Mapping[str, str] = {}
"""Tools of this server that the API does not have, with the reason."""

NEVER_NULL: Mapping[str, tuple[str, ...]] = {
    "message": ("phase",),
    "reasoning": ("content", "encrypted_content"),
    "output_text": ("logprobs",),
}
"""Keys by `type` that the Open Responses document requires to be absent rather than null; its types allow both."""

_ITEMS = {"message", "function_call", "function_call_output", "reasoning", "compaction"}
_EFFORTS = {"none", "low", "medium", "high", "xhigh", None}


@dataclass(frozen=True)
class _Deviation:
    """A part of a response unknown to the Open Responses document: the reason, and a replacement for validation."""

    why: str
    known: Callable[[Json], Json]


def _items(response: Json) -> Json:
    return {"output": [item for item in response["output"] if item["type"] in _ITEMS]}


def _annotations(response: Json) -> Json:
    return {"output": [_cited(item) for item in response["output"]]}


def _cited(item: Json) -> Json:
    """Return the item with only the annotations that the document knows."""
    if item["type"] != "message":
        return item
    parts = [
        {**part, "annotations": [one for one in part["annotations"] if one["type"] == "url_citation"]}
        if part["type"] == "output_text"
        else part
        for part in item["content"]
    ]
    return {**item, "content": parts}


def _tools(response: Json) -> Json:
    return {"tools": [tool for tool in response["tools"] if tool["type"] == "function"]}


def _choice(response: Json) -> Json:
    choice = response["tool_choice"]
    if isinstance(choice, str):
        return {}
    named = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
    return {} if all(tool["type"] == "function" for tool in named) else {"tool_choice": "auto"}


def _schema(response: Json) -> Json:
    shown = response["text"]["format"]
    if shown["type"] != "json_schema":
        return {}
    return {"text": {**response["text"], "format": {**shown, "schema": None}}}


def _effort(response: Json) -> Json:
    reasoning = response["reasoning"]
    return {} if reasoning["effort"] in _EFFORTS else {"reasoning": {**reasoning, "effort": None}}


def _instructions(response: Json) -> Json:
    return {"instructions": "items"} if isinstance(response["instructions"], list) else {}


DEVIATIONS = (
    _Deviation("it has five item types; hosted and custom tools have others", _items),
    _Deviation("its only annotation is url_citation", _annotations),
    _Deviation("its only tools are functions", _tools),
    _Deviation("its tool choices cover only functions", _choice),
    _Deviation("it types the schema of a json_schema format as null, but the schema is echoed", _schema),
    _Deviation("it lacks the efforts minimal and max, which OpenAI echoes", _effort),
    _Deviation("its instructions are text; those of a stored prompt are items", _instructions),
)


def _coded(event: Json) -> Json:
    # The document requires a code in every WebSocket error, but OpenAI's errors about the history have none.
    return {**event, "error": {**event["error"], "code": event["error"]["code"] or "none"}}


def without_deviations(value: Json) -> Json | None:
    """Return a response or event without the parts unknown to the Open Responses document.

    Returns None for an event about an item of an unknown type.
    """
    if value.get("object") == "response":
        for deviation in DEVIATIONS:
            value = {**value, **deviation.known(value)}
        return value
    if value["type"] == "error":
        return _coded(value)
    if "item" in value:
        return {**value, "item": _cited(value["item"])} if value["item"]["type"] in _ITEMS else None
    if value["type"] == "response.output_text.annotation.added":
        return value if value["annotation"]["type"] == "url_citation" else None
    if isinstance(part := value.get("part"), dict) and part["type"] == "output_text":
        return {**value, "part": _cited({"type": "message", "content": [part]})["content"][0]}
    return value
