"""A scripted upstream with the Responses API, and helpers that build its events.

It runs the scripted upstream at another path. Ids and sequence numbers are the upstream's own and must not reach
clients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenants import services
from tests.support.upstream import Answer, Piece, Script, ScriptedUpstream, running_upstream, stream, whole

Event = dict[str, Any]
Item = dict[str, Any]
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}


@contextmanager
def responses_script(upstream: ScriptedUpstream, **capabilities: Any) -> Iterator[Script]:
    """Register a new model with a new Responses upstream that has these capabilities, and yield its script."""
    with upstream.script() as script:
        services.add_upstream(
            name=f"responses of {script.model}",
            base_url=upstream.url,
            api_key="upstream-secret",
            models=[script.model],
            wire_api="responses",
            capabilities=capabilities,
        )
        yield script


@contextmanager
def running_responses_upstream() -> Iterator[ScriptedUpstream]:
    """Run the scripted upstream."""
    with running_upstream(path="/v1/responses") as upstream:
        yield upstream


def function(name: str) -> dict[str, Any]:
    """Return a function tool without parameters, as requests contain it."""
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "name": name, "description": f"{name.title()}s.", "parameters": parameters}


# -- events ------------------------------------------------------------------------------------------------------------


def event(kind: str, **fields: Any) -> Event:
    """Return an event. Its sequence number is arbitrary, because it must be replaced."""
    return {"type": f"response.{kind}", "sequence_number": 7, **fields}


def added(index: int, item: Item) -> Event:
    """Return the event that adds an item."""
    return event("output_item.added", output_index=index, item={"status": "in_progress", **item})


def done(index: int, item: Item) -> Event:
    """Return the event with a finished item."""
    return event("output_item.done", output_index=index, item={"status": "completed", **item})


def message(text: str, **fields: Any) -> Item:
    """Return a message with text."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": "msg_theirs", "type": "message", "role": "assistant", "content": [part] if text else [], **fields}


def reasoning(*summary: str, **fields: Any) -> Item:
    """Return a reasoning item. Like OpenAI's, it has no status."""
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"id": "rs_theirs", "type": "reasoning", "summary": parts, **fields}


def function_call(name: str, arguments: str, **fields: Any) -> Item:
    """Return a function call with the id `call_<name>`."""
    body = {"id": "fc_theirs", "type": "function_call", "call_id": f"call_{name}", "name": name}
    return {**body, "arguments": arguments, **fields}


def custom_call(name: str, given: str, **fields: Any) -> Item:
    """Return a call of a custom tool."""
    body = {"id": "ctc_theirs", "type": "custom_tool_call", "call_id": f"call_{name}", "name": name}
    return {**body, "input": given, **fields}


def texts(index: int, *pieces: str, part: int = 0) -> list[Event]:
    """Return the events of a text part, with a delta for each piece."""
    place = {"output_index": index, "content_index": part, "item_id": "msg_theirs"}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    whole_text = "".join(pieces)
    return [
        event("content_part.added", **place, part=empty),
        *(event("output_text.delta", **place, delta=piece, logprobs=[]) for piece in pieces),
        event("output_text.done", **place, text=whole_text, logprobs=[]),
        event("content_part.done", **place, part={**empty, "text": whole_text}),
    ]


def message_events(*pieces: str, index: int = 0) -> list[Event]:
    """Return the events of a message."""
    return [added(index, message("")), *texts(index, *pieces), done(index, message("".join(pieces)))]


def call_events(name: str, *pieces: str, index: int = 0) -> list[Event]:
    """Return the events of a function call, with its arguments in pieces."""
    arguments = "".join(pieces)
    place = {"output_index": index, "item_id": "fc_theirs"}
    return [
        added(index, function_call(name, "")),
        *(event("function_call_arguments.delta", **place, delta=piece) for piece in pieces),
        event("function_call_arguments.done", **place, name=name, arguments=arguments),
        done(index, function_call(name, arguments)),
    ]


def reasoning_events(*pieces: str, index: int = 0, **fields: Any) -> list[Event]:
    """Return the events of a reasoning item with one summary part."""
    place = {"output_index": index, "summary_index": 0, "item_id": "rs_theirs"}
    whole_text = "".join(pieces)
    return [
        added(index, reasoning()),
        event("reasoning_summary_part.added", **place, part={"type": "summary_text", "text": ""}),
        *(event("reasoning_summary_text.delta", **place, delta=piece) for piece in pieces),
        event("reasoning_summary_text.done", **place, text=whole_text),
        event("reasoning_summary_part.done", **place, part={"type": "summary_text", "text": whole_text}),
        done(index, reasoning(whole_text, **fields)),
    ]


def response(status: str = "completed", *output: Item, **fields: Any) -> dict[str, Any]:
    """The response object of the upstream."""
    body = {"id": "resp_theirs", "object": "response", "created_at": 1_700_000_000, "status": status, "model": "theirs"}
    finished = {"output": list(output), "error": None, "incomplete_details": None, "usage": USAGE}
    return {**body, **finished, "service_tier": "default", **fields}


def end(status: str = "completed", **fields: Any) -> Event:
    """The last event."""
    return event(status, response=response(status, **fields))


def answer(*pieces: Piece | list[Event], **ending: Any) -> Answer:
    """A streamed answer as OpenAI sends it: from `created` to the last event, without `[DONE]`."""
    opened = {**response("in_progress"), "usage": None}
    flat: list[Piece] = [event("created", response=opened), event("in_progress", response=opened)]
    for piece in pieces:
        flat += piece if isinstance(piece, list) else [piece]
    return stream(*flat, end(**ending), done=False)


def cut(*pieces: Piece | list[Event]) -> Answer:
    """The same without its last event."""
    whole_answer = answer(*pieces)
    return stream(*whole_answer.pieces[:-1], done=False)


def unstreamed(*output: Item, **fields: Any) -> Answer:
    """An answer of a server that does not stream."""
    return whole(response(fields.pop("status", "completed"), *output, **fields))
