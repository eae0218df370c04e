"""Types of Anthropic's API, strict and closed. The SDK itself validates nothing."""

from typing import Annotated, Any, Literal

import httpx2
import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Json = dict[str, Any]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Citation(_Closed):
    type: Literal["web_search_result_location"]
    url: str
    title: str | None
    cited_text: str
    encrypted_index: str


class _Text(_Closed):
    type: Literal["text"]
    text: str
    citations: list[_Citation] = []


class _Thinking(_Closed):
    type: Literal["thinking"]
    thinking: str
    signature: str


class _Redacted(_Closed):
    type: Literal["redacted_thinking"]
    data: str


class _ToolUse(_Closed):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class _ServerToolUse(_Closed):
    type: Literal["server_tool_use"]
    id: str
    name: Literal["web_search", "web_fetch"]
    input: Json


class _Found(_Closed):
    type: Literal["web_search_result"]
    url: str
    title: str
    encrypted_content: str
    page_age: None


class _SearchError(_Closed):
    type: Literal["web_search_tool_result_error"]
    error_code: Literal["unavailable"]


class _SearchResult(_Closed):
    type: Literal["web_search_tool_result"]
    tool_use_id: str
    content: list[_Found] | _SearchError


class _FetchResult(_Closed):
    type: Literal["web_fetch_tool_result"]
    tool_use_id: str
    content: Json


_Block = Annotated[
    _Text | _Thinking | _Redacted | _ToolUse | _ServerToolUse | _SearchResult | _FetchResult,
    Field(discriminator="type"),
]


class _OutputDetails(_Closed):
    thinking_tokens: int


class _ServerTools(_Closed):
    web_search_requests: int
    web_fetch_requests: int


class _Usage(_Closed):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens_details: _OutputDetails | None = None
    server_tool_use: _ServerTools | None = None


class _StopDetails(_Closed):
    type: Literal["refusal"]
    category: None
    explanation: None


class _Stop(_Closed):
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"] | None
    stop_sequence: str | None
    stop_details: _StopDetails | None = None


class _Message(_Stop):
    id: Annotated[str, Field(pattern="^msg_")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[_Block]
    usage: _Usage
    diagnostics: Json | None = None


class _Tokens(_Closed):
    input_tokens: int


class _ErrorDetail(_Closed):
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
    ]
    message: Annotated[str, Field(min_length=1)]
    details: dict[Literal["error_code"], Literal["thread_unsupported_request"]] | None = None


class _Error(_Closed):
    type: Literal["error"]
    error: _ErrorDetail
    request_id: Annotated[str, Field(pattern="^req_")]


class _ErrorEvent(_Closed):
    type: Literal["error"]
    error: _ErrorDetail


class _MessageStart(_Closed):
    type: Literal["message_start"]
    message: _Message


class _BlockStart(_Closed):
    type: Literal["content_block_start"]
    index: int
    content_block: _Block


class _TextDelta(_Closed):
    type: Literal["text_delta"]
    text: str


class _InputDelta(_Closed):
    type: Literal["input_json_delta"]
    partial_json: str


class _ThinkingDelta(_Closed):
    type: Literal["thinking_delta"]
    thinking: str


class _SignatureDelta(_Closed):
    type: Literal["signature_delta"]
    signature: str


class _CitationsDelta(_Closed):
    type: Literal["citations_delta"]
    citation: _Citation


class _BlockDelta(_Closed):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[
        _TextDelta | _InputDelta | _ThinkingDelta | _SignatureDelta | _CitationsDelta, Field(discriminator="type")
    ]


class _BlockStop(_Closed):
    type: Literal["content_block_stop"]
    index: int


class _MessageDelta(_Closed):
    type: Literal["message_delta"]
    delta: _Stop
    usage: _Usage


class _MessageStop(_Closed):
    type: Literal["message_stop"]


class _Ping(_Closed):
    type: Literal["ping"]


_EVENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        _MessageStart | _BlockStart | _BlockDelta | _BlockStop | _MessageDelta | _MessageStop | _Ping | _ErrorEvent,
        Field(discriminator="type"),
    ]
)


class _Model(_Closed):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None


class _Models(_Closed):
    data: list[_Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


def check_message_answer(path: str, answer: httpx2.Response) -> None:
    """Validate a response of an endpoint below `/messages` or `/models`."""
    assert answer.headers["content-type"] == "application/json", answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    if answer.status_code >= 400:
        error = _Error.model_validate_json(answer.content)
        assert error.request_id == answer.headers["request-id"]
        return
    kinds: dict[str, type[BaseModel]] = {"/messages": _Message, "/messages/count_tokens": _Tokens, "/models": _Models}
    kinds.get(path, _Model).model_validate_json(answer.content)


def check_message_event(event: Json) -> None:
    """Validate an event of a streamed message."""
    _EVENT.validate_json(orjson.dumps(event))


def folded(events: list[Json]) -> Json:
    """Return the message that the events of a complete stream describe, and check their order."""
    first, *middle, last = [event for event in events if event["type"] != "ping"]
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    *inner, delta = middle
    assert delta["type"] == "message_delta"
    message: Json = {**first["message"], **delta["delta"], "usage": delta["usage"], "content": []}
    block: Json | None = None
    for event in inner:
        match event:
            case {"type": "content_block_start"}:
                assert (block, event["index"]) == (None, len(message["content"]))
                block = {**event["content_block"]}
            case {"type": "content_block_delta"}:
                assert block is not None
                assert event["index"] == len(message["content"])
                _apply(block, event["delta"])
            case {"type": "content_block_stop"}:
                assert block is not None
                if isinstance(pieces := block.pop("partial", None), str):
                    block["input"] = orjson.loads(pieces)
                message["content"].append(block)
                block = None
            case _:
                raise AssertionError(event)
    assert block is None
    return message


def _apply(block: Json, delta: Json) -> None:
    match delta:
        case {"type": "text_delta", "text": text}:
            block["text"] += text
        case {"type": "thinking_delta", "thinking": text}:
            block["thinking"] += text
        case {"type": "signature_delta", "signature": signature}:
            block["signature"] = signature
        case {"type": "input_json_delta", "partial_json": text}:
            block["partial"] = block.get("partial", "") + text
        case {"type": "citations_delta", "citation": citation}:
            block.setdefault("citations", []).append(citation)
