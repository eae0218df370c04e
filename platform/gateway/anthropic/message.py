"""The output of a run as a message: whole, or as the events of a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from core.clock import now
from core.errors import ServerError
from engine.calls.outcomes import parse_object
from engine.converter.segments import PartKind
from engine.events.types import (
    ContentPartDone,
    ErrorEvent,
    Event,
    FunctionCallArgumentsDelta,
    OutputItemAdded,
    OutputItemDone,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    ReasoningSummaryTextDelta,
    ReasoningTextDelta,
    RefusalDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseIncomplete,
)
from engine.steps import RunEnded, Step
from gateway.anthropic import errors

Body = dict[str, Any]
_NO_USAGE = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """Options of a request that its answer depends on. `diagnoses`: the request asked about the prompt cache."""

    shows_thinking: bool
    omits_thinking: bool
    diagnoses: bool = False


def whole(end: RunEnded, options: MessageOptions) -> Body:
    """Return the message of a run that has completed, or whose output was cut."""
    output: Sequence[Body] = end.response["output"]
    called = any(item["type"] == "function_call" for item in output)
    content: list[Body] = []
    for item in output:
        match item["type"]:
            case "message":
                content += _text_blocks(item)
            case "reasoning":
                content += _thinking_blocks(item, options, called=called)
            case "function_call":
                content.append(_tool_use(item, parse_object(item["arguments"]) or {}))
            case "web_search_call":
                content += _web_blocks(item)
    return {**_head(end.response, options), **_stop(end), "content": content, "usage": _usage(end.response)}


def _head(response: Mapping[str, Any], options: MessageOptions) -> Body:
    # The id differs from the response's id only in its prefix, so that the run can be found.
    body: Body = {
        "id": response["id"].replace("resp_", "msg_", 1),
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    if options.diagnoses:
        # Only the upstream knows the contents of its cache.
        body["diagnostics"] = {"cache_miss_reason": {"type": "unavailable"}}
    return body


def _stop(end: RunEnded) -> Body:
    output: Sequence[Body] = end.response["output"]
    sequence = end.turn.result.stop_sequence if end.turn is not None else None
    refused = any(part["type"] == "refusal" for item in output if item["type"] == "message" for part in item["content"])
    reason = "end_turn"
    if end.ending.status == "incomplete":
        reason = "refusal" if end.ending.incomplete_reason == "content_filter" else "max_tokens"
    elif any(item["type"] == "function_call" for item in output):
        reason = "tool_use"
    elif refused:
        reason = "refusal"
    elif sequence is not None:
        reason = "stop_sequence"
    elif end.turn is None:
        # Nothing was generated, as with `max_tokens: 0`.
        reason = "max_tokens"
    stop: Body = {"stop_reason": reason, "stop_sequence": sequence if reason == "stop_sequence" else None}
    if reason == "refusal":
        stop["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return stop


def _usage(response: Mapping[str, Any]) -> Body:
    counted = response["usage"] or {}
    read = counted.get("input_tokens_details") or {}
    cached, written = read.get("cached_tokens", 0), read.get("cache_write_tokens", 0)
    usage: Body = {
        # Anthropic counts cached tokens separately, OpenAI includes them.
        "input_tokens": max(0, counted.get("input_tokens", 0) - cached - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": counted.get("output_tokens", 0),
    }
    if thought := (counted.get("output_tokens_details") or {}).get("reasoning_tokens"):
        usage["output_tokens_details"] = {"thinking_tokens": thought}
    actions = [item["action"]["type"] for item in response["output"] if item["type"] == "web_search_call"]
    if actions:
        searches = actions.count("search")
        fetches = len(actions) - searches
        usage["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": fetches}
    return usage


# -- blocks ------------------------------------------------------------------------------------------------------------


def _text_blocks(item: Body) -> list[Body]:
    blocks: list[Body] = []
    for part in item["content"]:
        text = part["refusal"] if part["type"] == "refusal" else part["text"]
        if not text:
            continue
        block: Body = {"type": "text", "text": text}
        found = (_citation(annotation) for annotation in part.get("annotations", ()))
        if cited := [citation for citation in found if citation is not None]:
            block["citations"] = cited
        blocks.append(block)
    return blocks


def _citation(annotation: Body) -> Body | None:
    if annotation["type"] != "url_citation":
        return None
    return {
        "type": "web_search_result_location",
        "url": annotation["url"],
        "title": annotation["title"],
        # The model names its source, but not the passage.
        "cited_text": "",
        "encrypted_index": "",
    }


def _thinking_blocks(item: Body, options: MessageOptions, *, called: bool) -> list[Body]:
    parts = item["summary"] or item.get("content") or ()
    text, signature = "\n\n".join(part["text"] for part in parts), item.get("encrypted_content") or ""
    if text and options.shows_thinking:
        return [{"type": "thinking", "thinking": "" if options.omits_thinking else text, "signature": signature}]
    return _redacted(item, options, called=called)


def _redacted(item: Body, options: MessageOptions, *, called: bool) -> list[Body]:
    # Some upstreams require such data with the results of their calls, even if the client did not ask for thinking.
    is_empty = not (item["summary"] or item.get("content"))
    if item.get("encrypted_content") and is_empty and (called or options.shows_thinking):
        return [{"type": "redacted_thinking", "data": item["encrypted_content"]}]
    return []


def _tool_use(item: Body, arguments: Body) -> Body:
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": arguments}


def _web_blocks(item: Body) -> list[Body]:
    """Return the blocks of a step of a web search: the call and its result, which contains the search results."""
    action, results, call_id = item["action"], item.get("results") or [], item["id"]
    failed = item["status"] != "completed"
    if action["type"] == "search":
        name, arguments = "web_search", {"query": " | ".join(action.get("queries") or [action.get("query") or ""])}
        content: Any = [
            {
                "type": "web_search_result",
                "url": result["url"],
                "title": result.get("title") or result["url"],
                "encrypted_content": result.get("text") or "",
                "page_age": None,
            }
            for result in results
        ]
        if failed:
            content = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    else:
        name = "web_fetch"
        arguments = {key: action[key] for key in ("url", "pattern") if action.get(key)}
        text = "\n\n".join(result.get("text") or "" for result in results)
        document = {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            "title": next((result["title"] for result in results if result.get("title")), None),
            "citations": None,
        }
        content = {
            "type": "web_fetch_result",
            "url": action.get("url") or "",
            "content": document,
            "retrieved_at": datetime.fromtimestamp(now().timestamp(), UTC).isoformat(),
        }
        if failed:
            content = {"type": "web_fetch_tool_result_error", "error_code": "url_not_accessible"}
    return [
        {"type": "server_tool_use", "id": call_id, "name": name, "input": arguments},
        {"type": f"{name}_tool_result", "tool_use_id": call_id, "content": content},
    ]


# -- events ------------------------------------------------------------------------------------------------------------


class MessageStream:
    """Writer of the events of a message, from the steps of its run. Implements `StreamFormat`."""

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._index = 0
        self._open = ""
        self._kind: PartKind | None = None
        self._part = -1
        self._thought = False
        self._has_input = False
        self._called = False
        # Redacted thinking that is only sent if a call precedes or follows.
        self._held: list[Body] = []
        self._over = False

    def open(self, events: Sequence[Event], *, input_tokens: int) -> bytes:
        """Return `message_start` with estimated input tokens. `message_delta` has the upstream's number of tokens."""
        usage = {**_NO_USAGE, "input_tokens": input_tokens}
        return b"".join(
            _event("message_start", message={**_head(event.response, self._options), "usage": usage})
            for event in events
            if isinstance(event, ResponseCreated)
        )

    def write(self, step: Step) -> bytes:
        """Return the events of a step."""
        data = b"".join(self._convert(event, step) for event in step.events)
        return data + self.close() if isinstance(step, RunEnded) else data

    def close(self) -> bytes:
        """Return an error if the stream has no end yet: the run was cancelled or is continued elsewhere."""
        if self._over:
            return b""
        self._over = True
        return errors.event(ServerError("The message was cancelled."))

    def _convert(self, event: Event, step: Step) -> bytes:
        match event:
            case OutputTextDelta() | RefusalDelta():
                return self._text(event.delta)
            case OutputTextAnnotationAdded():
                citation = _citation(event.annotation)
                if citation is None or self._open != "text":
                    return b""
                return self._delta(type="citations_delta", citation=citation)
            case ReasoningSummaryTextDelta():
                return self._thinking("summary_text", event.summary_index, event.delta)
            case ReasoningTextDelta():
                return self._thinking("reasoning_text", event.content_index, event.delta)
            case OutputItemAdded(item={"type": "function_call"}):
                self._called, self._has_input = True, False
                return self._release() + self._start(_tool_use(event.item, {}))
            case FunctionCallArgumentsDelta():
                self._has_input = True
                return self._delta(type="input_json_delta", partial_json=event.delta)
            case ContentPartDone() if self._open == "text":
                return self._stop()
            case OutputItemAdded(item={"type": "reasoning"}):
                self._kind, self._part, self._thought = None, -1, False
            case OutputItemDone():
                return self._item_done(event.item)
            case ErrorEvent():
                self._over = True
                return errors.event_of(event.error)
            case ResponseCompleted() | ResponseIncomplete() if isinstance(step, RunEnded):
                self._over = True
                released = self._release() if self._called else b""
                stop = _stop(step)
                return (
                    released + _event("message_delta", delta=stop, usage=_usage(step.response)) + _event("message_stop")
                )
        return b""

    def _item_done(self, item: Body) -> bytes:
        match item["type"]:
            case "reasoning" if self._thought:
                signature = self._delta(type="signature_delta", signature=item.get("encrypted_content") or "")
                return signature + self._stop()
            case "reasoning":
                blocks = _redacted(item, self._options, called=True)
                if self._options.shows_thinking or self._called:
                    return b"".join(map(self._whole, blocks))
                self._held += blocks
            case "function_call":
                # The arguments may have come as a whole.
                rest = b""
                if not self._has_input and item["arguments"]:
                    rest = self._delta(type="input_json_delta", partial_json=item["arguments"])
                return rest + self._stop()
            case "web_search_call":
                return b"".join(map(self._whole, _web_blocks(item)))
        return b""

    def _text(self, delta: str) -> bytes:
        if not delta:
            return b""
        start = b"" if self._open == "text" else self._start({"type": "text", "text": ""})
        return start + self._delta(type="text_delta", text=delta)

    def _thinking(self, kind: PartKind, part: int, delta: str) -> bytes:
        # Only the kind that comes first is written: a summary precedes the raw reasoning, with the same content.
        self._kind = self._kind or kind
        if not delta or not self._options.shows_thinking or kind != self._kind:
            return b""
        start = b""
        if not self._thought:
            self._thought, self._part = True, part
            start = self._start({"type": "thinking", "thinking": "", "signature": ""})
        if self._options.omits_thinking:
            return start
        if part != self._part:
            self._part, delta = part, f"\n\n{delta}"
        return start + self._delta(type="thinking_delta", thinking=delta)

    def _release(self) -> bytes:
        held, self._held = self._held, []
        return b"".join(map(self._whole, held))

    def _whole(self, block: Body) -> bytes:
        return self._start(block) + self._stop()

    def _start(self, block: Body) -> bytes:
        self._open = block["type"]
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        self._open, self._index = "", self._index + 1
        return _event("content_block_stop", index=self._index - 1)


def _event(kind: str, **values: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **values}))
