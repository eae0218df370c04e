"""Clients of the three APIs: their requests, and the outcomes that they observe."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiohttp
import orjson

from benchmarks.books.runs import TERMINAL
from benchmarks.failover.cases import EMBEDDINGS, Cell, Outcome
from benchmarks.failover.upstream import other_text_for, text_for

PATHS = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
Body = dict[str, Any]
# More than any answer has. Hard budgets reserve the cost of as many.
_MAX_TOKENS = 200


class Endpoint(Protocol):
    """A model at one of the APIs, with or without a stream. `name` is that of the model."""

    @property
    def name(self) -> str: ...

    @property
    def api(self) -> str: ...

    @property
    def streamed(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer as its client has read it.

    `is_complete`: it was reported as complete. `error` is the code of a reported error; Anthropic's errors have a type
    instead. `is_late`: it did not end before the deadline.
    """

    text: str = ""
    is_complete: bool = False
    error: str = ""
    status: int = 200
    is_late: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """A request with its answer. Times are monotonic seconds."""

    cell: Cell
    name: str
    began: float
    seconds: float
    reply: Reply

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of the request."""
        return outcome_of(self.reply, [text_for(self.name), other_text_for(self.name)])


def outcome_of(reply: Reply, texts: Sequence[str]) -> Outcome:
    """Return the outcome of an answer that has to be one of these texts."""
    is_beginning = any(text.startswith(reply.text) for text in texts)
    if reply.is_late:
        return Outcome.LATE
    if reply.is_complete:
        if reply.text in texts and not reply.error:
            return Outcome.WHOLE
        return Outcome.TRUNCATED if is_beginning else Outcome.WRONG
    if not is_beginning:
        return Outcome.WRONG
    if not reply.error:
        return Outcome.BROKEN
    return Outcome.FAILED if reply.text else Outcome.ERROR


def body_of(endpoint: Endpoint, name: str) -> Body:
    """Return the body of a request. The end user of its usage records is its name."""
    text = f"{name} Please answer."
    if endpoint.api == EMBEDDINGS:
        return {"model": endpoint.name, "input": text, "user": name}
    body: Body = {"model": endpoint.name, "stream": endpoint.streamed}
    if endpoint.api == "responses":
        return {**body, "input": text, "safety_identifier": name, "max_output_tokens": _MAX_TOKENS}
    body["messages"] = [{"role": "user", "content": text}]
    if endpoint.api == "messages":
        return {**body, "max_tokens": _MAX_TOKENS, "metadata": {"user_id": name}}
    return {**body, "safety_identifier": name, "max_completion_tokens": _MAX_TOKENS}


async def ask(session: aiohttp.ClientSession, url: str, cell: Cell, name: str, *, deadline: float) -> Result:
    """Send a request on a connection of its own and read the answer."""
    began = time.monotonic()
    reply = await reply_to(session, url, cell, name, deadline=deadline)
    return Result(cell=cell, name=name, began=began, seconds=time.monotonic() - began, reply=reply)


async def reply_to(
    session: aiohttp.ClientSession,
    url: str,
    endpoint: Endpoint,
    name: str,
    *,
    deadline: float,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send a request and read its reply for at most `deadline` seconds."""
    received = bytearray()
    status, is_late = 0, False
    try:
        async with (
            asyncio.timeout(deadline),
            session.post(
                url + PATHS[endpoint.api], data=orjson.dumps(body_of(endpoint, name)), headers=headers
            ) as answer,
        ):
            status = answer.status
            async for piece in answer.content.iter_any():
                received += piece
    except TimeoutError:
        is_late = True
    except (aiohttp.ClientError, OSError):
        # What was received before is read below.
        pass
    return replace(read(endpoint, status, bytes(received)), is_late=is_late)


def read(endpoint: Endpoint, status: int, content: bytes) -> Reply:
    """Return the reply with this status and content, of which the end may be missing."""
    try:
        if endpoint.streamed and status == 200:
            return _STREAMS[endpoint.api]([*_events(content)])
        document = orjson.loads(content)
        if status != 200:
            return Reply(error=_code(document), status=status)
        return _DOCUMENTS[endpoint.api](document)
    except orjson.JSONDecodeError:
        return Reply(status=status)


def _events(content: bytes) -> Iterator[Body]:
    """Yield the events of a stream; a last one that is incomplete is ignored."""
    *events, _ = content.split(b"\n\n")
    for event in events:
        for line in event.split(b"\n"):
            if line == b"data: [DONE]":
                yield {"type": "done"}
            elif line.startswith(b"data: "):
                yield orjson.loads(line[6:])


def _code(document: Mapping[str, Any]) -> str:
    error = document["error"]
    return str(error.get("code") or error.get("type"))


# -- responses ---------------------------------------------------------------------------------------------------------


def _response(response: Body) -> Reply:
    texts = [
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    ]
    error = response["error"]
    return Reply(
        text="".join(texts),
        is_complete=response["status"] == "completed",
        error="" if error is None else str(error["code"]),
    )


def _response_stream(events: Sequence[Body]) -> Reply:
    text, final, error = "", None, ""
    for event in events:
        if event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] == "error":
            # An error of the request, after keep-alives were sent, is an object of its own.
            error = _code({"error": event.get("error", event)})
        elif (response := event.get("response")) is not None and response["status"] in TERMINAL:
            final = _response(response)
    if final is None:
        return Reply(text=text, error=error)
    if final.text != text:
        # Neither of them may be lost or doubled.
        return replace(final, text=f"{text}|{final.text}")
    return final


# -- chat completions --------------------------------------------------------------------------------------------------


def _completion(completion: Body) -> Reply:
    [choice] = completion["choices"]
    return Reply(text=choice["message"]["content"] or "", is_complete=choice["finish_reason"] == "stop")


def _completion_stream(events: Sequence[Body]) -> Reply:
    text, finish, error, is_done = "", "", "", False
    for event in events:
        is_done = is_done or event.get("type") == "done"
        if "error" in event:
            error = _code(event)
        for choice in event.get("choices", ()):
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    return Reply(text=text, is_complete=is_done and finish == "stop", error=error)


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(message: Body) -> Reply:
    text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
    return Reply(text=text, is_complete=message["stop_reason"] == "end_turn")


def _message_stream(events: Sequence[Body]) -> Reply:
    text, reason, error, is_over = "", "", "", False
    for event in events:
        match event["type"]:
            case "content_block_delta":
                text += event["delta"].get("text", "")
            case "message_delta":
                reason = event["delta"]["stop_reason"]
            case "message_stop":
                is_over = True
            case "error":
                error = _code(event)
    return Reply(text=text, is_complete=is_over and reason == "end_turn", error=error)


# -- embeddings --------------------------------------------------------------------------------------------------------


def _embedding(answer: Body) -> Reply:
    # The targets send the code points of the text.
    [entry] = answer["data"]
    return Reply(text="".join(chr(int(number)) for number in entry["embedding"]), is_complete=True)


_STREAMS: Mapping[str, Callable[[Sequence[Body]], Reply]] = {
    "responses": _response_stream,
    "chat": _completion_stream,
    "messages": _message_stream,
}
_DOCUMENTS: Mapping[str, Callable[[Body], Reply]] = {
    "responses": _response,
    "chat": _completion,
    "messages": _message,
    EMBEDDINGS: _embedding,
}
