"""Past runs: the recorder of real runs records the turns of a script, without a model or tools."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from itertools import islice
from random import Random
from typing import Any, Self

import orjson
from django.db import models

from conversations.items import plain_text, project
from conversations.models import Conversation, Item, Placement, Section
from core.clock import unix
from core.ids import new_id
from engine.calls.hosted import whole_item
from engine.calls.item_events import after_result, before_result
from engine.calls.outcomes import RequireApproval, ToolResult, request_digest
from engine.compaction.token_estimate import tokens
from engine.converter.chat import ChatConverter, Chunk
from engine.events.response_body import Ending, closing, failed, opening, queued, response_body
from engine.events.types import Body, Event, OutputItemAdded, OutputItemDone, ResponseInProgress
from engine.state import OutputItem, PendingCall
from engine.steps import (
    CallRecord,
    Emitted,
    RunEnded,
    RunStarted,
    Step,
    ToolFinished,
    ToolsPrepared,
    ToolsStarted,
    TurnEnded,
    TurnRecord,
)
from engine.turn import Attempt, Call, CallForm, Finish, FunctionTool, Sampling, Usage
from responses.models import Approval, ApprovalState, EventBatch, Mode, Response, Status, ToolCall
from responses.requests import parameters
from responses.runs.identity import RunIdentity
from responses.runs.recorder import Recorder, RecorderState, item_rows, preview
from responses.runs.rows import Row
from responses.schema import parse_create
from responses.tools import registry  # noqa: F401 - adds the hosted tools to the schema of requests
from seeding.scenarios import Parts
from seeding.teams import MODELS
from tenants.models import ApiKey, Upstream, UsageRecord

_FLUSH = timedelta(milliseconds=250)
# Long enough that no worker resumes a run that only appears to be in progress.
_LEASE = timedelta(days=2)
_MOST_PIECES = 90
_PREFIXES = {"web_search_call": "ws", "file_search_call": "fs", "code_interpreter_call": "ci", "mcp_call": "mcp"}
_PRICED = {"web_search", "file_search"}
_DATED: dict[type[models.Model], str] = {
    Item: "created_at",
    EventBatch: "created_at",
    Approval: "asked_at",
    ToolCall: "started_at",
    UsageRecord: "occurred_at",
}
_CUT = {Finish.LENGTH: "max_output_tokens", Finish.CONTENT_FILTER: "content_filter"}


def _requested(call: Parts) -> Call:
    arguments = orjson.dumps(call["arguments"]).decode()
    return Call(item_id=call["call_id"], call_id=call["call_id"], name=call["name"], arguments=arguments)


def _kind(call: Parts) -> str:
    return str(call["item"]["type"]).removesuffix("_call") if "item" in call else "function"


def _chunks(turn: Parts) -> Iterator[tuple[Chunk, int]]:
    """Yield the chunks of the upstream with the number of characters that each took to generate."""
    pieces: list[tuple[Chunk, str]] = []
    for name, field in (("reasoning", "reasoning_content"), ("text", "content"), ("refusal", "refusal")):
        text = turn.get(name, "")
        size = max(14, -(-len(text) // _MOST_PIECES))
        pieces += [
            ({field: text[start : start + size]}, text[start : start + size]) for start in range(0, len(text), size)
        ]
    for index, call in enumerate(turn.get("calls", ())):
        function = {"name": call["name"], "arguments": orjson.dumps(call["arguments"]).decode()}
        called = {"index": index, "id": call["call_id"], "type": "function", "function": function}
        pieces.append(({"tool_calls": [called]}, str(function)))
    for delta, text in pieces:
        yield {"choices": [{"index": 0, "delta": delta}]}, len(text)
    if "failure" in turn:
        return
    end: Chunk = {"delta": {}, "finish_reason": "tool_calls" if "calls" in turn else turn.get("finish", "stop")}
    if source := turn.get("cites"):
        # The citation of a file has a position in the text, that of a page a range.
        start, kind, length = turn["text"].index(source["place"]), source["type"], len(source["place"])
        place = {"index": start} if "file_id" in source else {"start_index": start, "end_index": start + length}
        end["delta"] = {"annotations": [{"type": kind, kind: {**source, **place}}]}
    yield {"choices": [end]}, 0
    usage = {
        "prompt_tokens": turn["read"],
        "completion_tokens": tokens(*(text for _, text in pieces)),
        "prompt_tokens_details": {"cached_tokens": turn["cached"]},
        "completion_tokens_details": {"reasoning_tokens": tokens(turn.get("reasoning", ""))},
    }
    yield {"choices": [], "usage": usage}, 0


class SeedRun:
    """A past response: `rows` are its database rows, `at` is the time at which it ended."""

    def __init__(
        self,
        exchange: Parts,
        *,
        key: ApiKey,
        upstream: Upstream,
        at: datetime,
        rng: Random,
        previous: Self | None = None,
        conversation: Conversation | None = None,
    ) -> None:
        """Run the exchange, which continues a conversation or a previous response if one is given."""
        for call in [call for turn in exchange["turns"] for call in turn.get("calls", ())]:
            call["call_id"] = new_id("call")
        chain = {"previous_response_id": previous.row.pk} if previous else {}
        chain = {"conversation": conversation.pk} if conversation else chain
        request = parse_create({**exchange["request"], **chain, "stream": exchange.get("stream", False)})
        background = bool(request.background)
        self.exchange, self.at, self._rng = exchange, at, rng
        self._parameters = parameters.public_parameters(request, response_id=new_id("resp", at=at), created_at=at)
        self._identity = RunIdentity(
            response_id=self._parameters["id"],
            team_id=key.team_id,
            key_id=key.pk,
            model=request.model,
            upstream_id=upstream.pk,
            upstream_model="demo",
            request_id=new_id("req", at=at),
            stored=True,
            obfuscate=False,
            created_at=at,
            background=background,
            prices=MODELS[request.model],
        )
        inputs = [item.with_id() for item in parameters.input_items(request)]
        self.row: Response = Response(
            id=self._identity.response_id,
            team_id=key.team_id,
            api_key_id=key.pk,
            created_at=at,
            mode=Mode.STREAM if request.stream else Mode.JSON,
            background=background,
            status=Status.QUEUED if background else Status.IN_PROGRESS,
            previous_response_id=request.previous_response_id,
            conversation_id=conversation.pk if conversation else None,
            history_id=conversation.pk if conversation else None,
            history_end=conversation.next_position if conversation else None,
            model=request.model,
            upstream_id=upstream.pk,
            upstream_model="demo",
            end_user=request.safety_identifier,
            request_id=self._identity.request_id,
            client_request_id=f"job-{rng.randrange(10**6):06d}" if rng.random() < 0.3 else "",
            parameters=self._parameters,
            options=parameters.hidden_options(request) | {"obfuscate": False, "prices": self._identity.prices.stored()},
            metadata=self._parameters["metadata"],
            input_preview=preview(inputs[-1]),
        )
        self.rows: list[models.Model] = [self.row]
        self._tool_calls: dict[str, ToolCall] = {}
        self._output: list[Body] = []
        self._usage = Usage()
        self._recorder = Recorder(self._identity, RecorderState())
        if previous is not None:
            self._answer(inputs, previous)
        for position, item in enumerate(inputs):
            self._add(item_rows(item, self._identity, Section.INPUT, position))
        self._recorder.opening((queued if background else opening)(self._parameters))
        self._add(self._recorder.take_batch())
        if exchange.get("ends") == "queued":
            self.row.lease_until = at + _LEASE
            return
        self._run(previous)
        if conversation is None:
            return
        for place in [row for row in self.rows if isinstance(row, Placement)]:
            owned = {"team_id": key.team_id, "owner": conversation.pk, "section": Section.ITEMS}
            self.rows.append(Placement(position=conversation.next_position, item_id=place.item_id, **owned))
            conversation.next_position += 1

    def names(self) -> dict[str, str]:
        """Return the ids that the next request of the client refers to, by their names in scenarios."""
        ids = {f"call_{index}": call_id for index, call_id in enumerate(self._tool_calls)}
        asked = [row.pk for row in self.rows if isinstance(row, Approval)]
        return {**ids, "approval": asked[0]} if asked else ids

    def _answer(self, inputs: Sequence[Body], previous: Self) -> None:
        """End the calls of the previous response that the request answers or approves."""
        for item in inputs:
            if item["type"] == "function_call_output":
                call = previous._tool_calls[item["call_id"]]
                call.status, call.ended_at, call.output = "completed", self.at, item["output"]
            elif item["type"] == "mcp_approval_response":
                approval = next(row for row in previous.rows if isinstance(row, Approval))
                approval.state = ApprovalState.GRANTED if item["approve"] else ApprovalState.DENIED
                approval.answered_at, approval.answered_in = self.at, self.row.pk
                call = previous._tool_calls[approval.call_id]
                call.status, call.ended_at = "approved" if item["approve"] else "denied", self.at

    def _run(self, previous: Self | None) -> None:
        self.at += timedelta(seconds=self.exchange.get("waits", 0.02))
        if self._identity.background:
            self.row.attempt = 1
            body = response_body(self._parameters, status="in_progress")
            self._record(RunStarted(events=[ResponseInProgress(response=body)]))
        for listing in self.exchange.get("listed", ()):
            body = {"id": new_id("mcpl"), **listing}
            events = self._open(body, shown={**body, "tools": []})
            self.at += timedelta(seconds=0.35)
            self._record(ToolsPrepared(events=[*events, *self._close(body)], items=[OutputItem(body=body)]))
        if previous is not None and self.exchange.get("approves"):
            calls = previous.exchange["turns"][-1]["calls"]
            for call in calls:
                call["item"]["approval_request_id"] = previous.names()["approval"]
            records = [CallRecord(call=_requested(call), turn=0, kind=_kind(call), state="pending") for call in calls]
            self._record(ToolsPrepared(events=[], calls=records))
            self._call_tools(calls, turn=0)
        for number, turn in enumerate(self.exchange["turns"]):
            self._take_turn(turn, number)

    def _take_turn(self, turn: Parts, number: int) -> None:
        scripted, ends = turn.get("calls", []), self.exchange.get("ends")
        tools = [
            FunctionTool(name=call["name"], form=CallForm.HOSTED if "item" in call else CallForm.FUNCTION)
            for call in scripted
        ]
        converter = ChatConverter(first_output_index=len(self._output), sampling=Sampling(tools=tuple(tools)))
        started, first, pace = self.at, None, self._rng.uniform(40, 160)
        self.at += timedelta(seconds=turn["wait"])
        flushed, events = self.at, list[Event]()
        for chunk, characters in islice(_chunks(turn), self.exchange.get("pieces")):
            events += converter.feed([chunk])
            first = first or self.at
            # As in real runs, deltas are logged four times a second, everything else immediately.
            if self.at - flushed >= _FLUSH:
                self._record(Emitted(events))
                flushed, events = self.at, []
            self.at += timedelta(seconds=characters / 4 / pace)
        if ends == "running":
            self._record(Emitted(events))
            self.row.lease_owner, self.row.lease_until = "worker-1:4711:c0ffee00", self.at + _LEASE
            return
        if "failure" in turn:
            converter.fail(turn["failure"])
        events += converter.interrupt() if ends else converter.end(done=True)
        attempt = Attempt(began=started, status=HTTPStatus.OK, request_id=new_id("chatcmpl").replace("_", "-"))
        result = converter.result(interrupted=bool(ends), attempts=[attempt])
        result = replace(result, first_token_at=first)
        usage = result.usage or Usage(
            input_tokens=turn["read"] if result.items else 0,
            output_tokens=tokens(*map(plain_text, result.items)),
            estimated=True,
        )
        self._usage += usage
        record = TurnRecord(number=number, started_at=started, ended_at=self.at, result=result, usage=usage)
        items, calls = [OutputItem(body=item) for item in result.items], []
        for call, script in zip(result.calls, scripted, strict=False):
            known = CallRecord(call=call, turn=number, kind=_kind(script), state="pending")
            if "item" not in script:
                known = replace(known, state="waiting")
            elif "asks" in script:
                names = {name: script["item"][name] for name in ("server_label", "name")}
                item = {"id": new_id("mcpr"), "type": "mcp_approval_request", **names, "arguments": call.arguments}
                events += whole_item(item, output_index=len(self._output) + len(items))
                items.append(OutputItem(body=item))
                known = replace(known, state="asked", ask=RequireApproval(item, definition=request_digest(item)))
            calls.append(known)
        if turn is not self.exchange["turns"][-1]:
            self._record(TurnEnded(events=events, turn=record, items=items, calls=calls))
            self._call_tools(scripted, turn=number)
            return
        ending = Ending(status="completed", completed_at=unix(self.at))
        if ends:
            ending = Ending(status="cancelled")
        elif "failure" in turn:
            ending = failed(turn["failure"])
        elif result.finish in _CUT:
            ending = Ending(status="incomplete", incomplete_reason=_CUT[result.finish])
        output = [*self._output, *(item.body for item in items)]
        body = response_body(self._parameters, status=ending.status, output=output, usage=self._usage, ending=ending)
        self._record(
            RunEnded(
                events=[*events, *closing(ending, body)],
                ending=ending,
                ended_at=self.at,
                response=body,
                usage=self._usage,
                turn=record,
                items=items,
                calls=calls,
            )
        )

    def _call_tools(self, calls: Sequence[Parts], *, turn: int) -> None:
        # The calls of a turn start at the same time; their items follow in order.
        began = self.at
        pending = [PendingCall(call=_requested(call), turn=turn, attempt=1) for call in calls]
        self._record(ToolsStarted(calls=pending, started_at=began))
        for call, requested in zip(calls, pending, strict=True):
            opened = {"id": new_id(_PREFIXES[call["item"]["type"]]), "status": "in_progress", **call["item"]}
            error = "failed" if call["done"].get("error") else None
            done = {**opened, "status": error or "completed", **call["done"]}
            # The model writes arguments and code after the item was opened.
            written = {name: done[name] for name in ("arguments", "code") if name in done}
            self._record(Emitted(self._open({**opened, **written}, shown=opened)))
            ended = began + timedelta(seconds=call["seconds"])
            self.at = max(self.at, ended)
            cost = call["name"] if call["name"] in _PRICED else None
            self._record(
                ToolFinished(
                    call=requested.call,
                    kind=_kind(call),
                    turn=turn,
                    result=ToolResult(output=call["output"], error=error, cost=cost),
                    ended_at=ended,
                    items=[OutputItem(body=done)],
                    events=self._close(done),
                )
            )

    def _open(self, body: Body, *, shown: Body) -> list[Event]:
        index = len(self._output)
        return [OutputItemAdded(output_index=index, item=shown), *before_result(body, output_index=index)]

    def _close(self, body: Body) -> list[Event]:
        index, shown = len(self._output), project(body, frozenset())
        return [*after_result(body, output_index=index), OutputItemDone(output_index=index, item=shown)]

    def _record(self, step: Step) -> None:
        """Add the rows of a step and apply its updates, as `responses.runs.store` does."""
        change = self._recorder.plan(step)[1]
        self._add(change.insert)
        updates: list[tuple[models.Model, dict[str, Any]]] = []
        updates += [(self._tool_calls[call.call_id], asdict(call)) for call in change.calls]
        updates += [(self.row, asdict(change.update))] if change.update else []
        for row, values in updates:
            for name, value in values.items():
                if value is not None and name not in {"response_id", "lease_token"}:
                    setattr(row, name, value)
        if self.row.status == Status.COMPLETED:
            self.row.completed_at = self.row.ended_at
        self._output += [item.body for item in getattr(step, "items", ())]

    def _add(self, rows: Sequence[Row]) -> None:
        # The recorder dates rows with the current time.
        for row in (row.instance() for row in rows):
            if isinstance(row, ToolCall):
                self._tool_calls[row.call_id] = row
            if name := _DATED.get(type(row)):
                setattr(row, name, self.at)
            self.rows.append(row)
