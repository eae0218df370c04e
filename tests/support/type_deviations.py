"""Where our JSON knowingly departs from the SDK's types or from the Open Responses document, and why.

There is no other such list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

EXTRA_KEYS: Mapping[str, str] = {
    "Response.input_messages": "an extension of vLLM's, only for those who ask for it",
    "Response.output_messages": "the same",
    "Response.request_id": "the same",
    "OutputTokensDetails.tool_output_tokens": "the same, where hosted tools have answered",
    "ResponseFunctionWebSearch.results": "the SDK has its name among what can be included, and no type for it",
    "Response.store": "the wire and the Open Responses document have it, the SDK's type does not",
    "Response.presence_penalty": "required by the Open Responses document",
    "Response.frequency_penalty": "required by the Open Responses document",
    "*.obfuscation": "padding of every delta, on the wire since 2025; the SDK has it in the type of one event",
    "ResponseFunctionCallArgumentsDoneEvent.name": "older SDKs have it in their types and read it",
    "ResponseFunctionCallArgumentsWsDone.name": "the same",
    "ResponseCustomToolCall.status": "a stored call has it in its type, and every other call in both",
    "ResponseCustomToolCall.created_by": "the same, of the items of conversations",
    "ResponseCustomToolCallOutput.status": "the same",
    "ResponseCustomToolCallOutput.created_by": "the same",
    "Logprob.bytes": "the wire and the Open Responses document have it; the types of events leave it out",
    "LogprobTopLogprob.bytes": "the same",
    "VectorStore.description": "requests set it; only the type of the answer has forgotten it",
    "ChatCompletionStoreMessage.name": "the SDK's type knows messages of assistants alone; the wire has all of them",
    "ChatCompletionStoreMessage.tool_call_id": "the same; without it nobody could tell which call a tool answered",
}
"""`Type.key` of the SDK's types, `*` being any: what we send beyond them, and why."""

UNCHECKED: Mapping[str, str] = {
    "OPTIONS .*": "what Django REST framework says of a view, which OpenAI has nothing like",
    "GET /files/[^/]+/content": "the bytes of a file",
    "GET /containers/[^/]+/files/[^/]+/content": "the bytes of a file",
    "GET /conversations/[^/]+/export": "lines of JSON, each an item",
    "POST /(embeddings|moderations|images/generations|images/edits)": (
        "the upstream's own answer; tests script short ones, test_types.py complete ones"
    ),
}
"""Answers that have no type to be held to, as patterns of method and path."""


@dataclass(frozen=True)
class _Value:
    """Why a value is sent that the SDK's type does not know, and one that it does know."""

    why: str
    known: Any


VALUES: Mapping[tuple[str, Any], _Value] = {
    ("code", "model_not_found"): _Value(
        "what a JSON request gets for the same; the wire has codes of its own", "server_error"
    ),
    ("code", "context_length_exceeded"): _Value(
        "what a JSON request gets for the same, and what clients of the wire look for", "invalid_prompt"
    ),
    ("code", "server_is_overloaded"): _Value(
        "on the wire of OpenAI; the SDK's type has not heard of it", "server_error"
    ),
    ("code", "content_policy_violation"): _Value(
        "what a JSON request gets for the same; the type has codes for OpenAI's own policies only", "server_error"
    ),
    **{
        ("role", role): _Value("the SDK types the messages of a stored completion as if they were answers", "assistant")
        for role in ("developer", "system", "user", "tool")
    },
    ("purpose", "evals"): _Value(
        "files may be uploaded for it; only the type of the answer has forgotten it", "vision"
    ),
}
"""Values by their key that the SDK's types do not know."""

CHOICES: Mapping[str, str] = {
    "web_search": "the SDK's type of `tool_choice` knows the tool by its first name alone",
    "web_search_2025_08_26": "the same",
}
"""Tools that `tool_choice` may force, and that the SDK's type does not know."""

NEVER_NULL: Mapping[str, tuple[str, ...]] = {
    "message": ("phase",),
    "reasoning": ("content", "encrypted_content"),
    "output_text": ("logprobs",),
}
"""By `type`: keys that the Open Responses document wants left out rather than null; its pydantic types allow both."""

_ITEMS = {"message", "function_call", "function_call_output", "reasoning", "compaction"}
_EFFORTS = {"none", "low", "medium", "high", "xhigh", None}


@dataclass(frozen=True)
class _Departure:
    """A part of a response that the Open Responses document does not know, and what is checked in its place."""

    why: str
    known: Callable[[Json], Json]


def _items(response: Json) -> Json:
    return {"output": [item for item in response["output"] if item["type"] in _ITEMS]}


def _annotations(response: Json) -> Json:
    return {"output": [_cited(item) for item in response["output"]]}


def _cited(item: Json) -> Json:
    """The item with those annotations that the document knows."""
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


DEPARTURES = (
    _Departure("the document knows five types of items; hosted and custom tools have others", _items),
    _Departure("of annotations it knows only url_citation", _annotations),
    _Departure("of tools it knows only functions", _tools),
    _Departure("a choice of other tools than functions is unknown to it", _choice),
    _Departure("it types the schema of a json_schema format as null, which no echo can be", _schema),
    _Departure("OpenAI has the efforts minimal and max, and echoes them", _effort),
    _Departure("instructions of a stored prompt are items; it knows only text", _instructions),
)


def _coded(event: Json) -> Json:
    """The document wants a code in every error of a WebSocket; OpenAI's errors of a wrong history have none."""
    return {**event, "error": {**event["error"], "code": event["error"]["code"] or "none"}}


def as_the_document_knows_it(value: Json) -> Json | None:
    """A response or an event, without what the Open Responses document does not know.

    None for an event about an item that it does not know at all.
    """
    if value.get("object") == "response":
        for departure in DEPARTURES:
            value = {**value, **departure.known(value)}
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
