"""Execution of a turn's hosted calls: concurrent, with items in call order. No call that may have run is repeated.

A call may wait for the decision of a person. Its item stays open, and the items of later calls follow it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from conversations.items import project
from core.ids import new_id
from engine.calls import call_items
from engine.calls.effects import UNKNOWN_RESULT, FailRun, effect_id, on_unknown_outcome
from engine.calls.item_events import announced, before_result, whole_item
from engine.calls.outcomes import InputRequired, Refuse, ToolResult, parse_object
from engine.calls.toolbox import ProgressEvent, Toolbox
from engine.calls.waits import PendingDecision, WaitKind
from engine.events.types import Body, Event, OutputItemAdded
from engine.state import Fragment, OutputItem, PendingCall, RunState, output_images
from engine.steps import CallsWaiting, Emitted, ToolFinished, ToolsReturned, ToolsStarted
from engine.turn import Call

_NO_OBJECT = "error: the call was not made because its arguments are not a JSON object"
_TRUNCATED = "\n[The output of the tool is too long and was truncated here.]"
_CANNOT_WAIT = ToolResult(
    output="error: the tool has asked a question, and this response cannot wait for an answer", error="input_required"
)
_DECISION_PREFIX = "dec"
HostedStep = Emitted | ToolsStarted | ToolsReturned | CallsWaiting | ToolFinished


class HostedCalls:
    """Runs the calls in `RunState.pending`.

    Before calls start, a step records that they may take effect. A result is stored as soon as it arrives; its item
    waits until the items of all earlier calls are closed.
    """

    def __init__(
        self,
        state: RunState,
        tools: Toolbox,
        *,
        response_id: str,
        now: Callable[[], datetime],
        include: frozenset[str] = frozenset(),
        wait_seconds: int | None = None,
    ) -> None:
        self._response_id = response_id
        self._wait_seconds = wait_seconds
        self._state = state
        self._include = include
        self._tools = tools
        self._now = now
        self._opened: Body | None = None
        # The ids of the items of calls that this process has started or continued.
        self._item_ids: dict[str, str] = {}
        # The ids of the calls whose open items were closed because the run ends.
        self._closed: set[str] = set()
        # The calls whose decisions were not requested yet.
        self._unrequested: list[PendingCall] = []
        self._progress: dict[str, list[ProgressEvent]] = {}
        for tool in tools.tools:
            tool.report = self._report

    @cached_property
    def _progress_reported(self) -> asyncio.Event:
        # Created by the first hosted call, because most runs have none and an event takes 0.8 KB.
        return asyncio.Event()

    def unknown_outcome(self, *, knows_tools: bool) -> FailRun | None:
        """Return the failure of a run with a call that an earlier process started and that must not be repeated.

        Return None without such a call, or if the run waits for a decision about it. Before the tools are prepared
        (`knows_tools` is false), only calls are considered whose tool did not declare, when they were started, that
        they may be repeated.
        """
        for pending in self._state.pending:
            if pending.is_unanswered and not self._may_repeat(pending, knows_tools=knows_tools):
                has_tool = not knows_tools or self._tools.find(pending.call.name) is not None
                if not has_tool or (self._wait_seconds is None and pending.decision is None):
                    return on_unknown_outcome(pending.call)
        return None

    @property
    def is_waiting(self) -> bool:
        """True if a call waits for the decision of a person."""
        return any(pending.decision is not None for pending in self._state.pending)

    def keeps_open(self, fragment: Fragment) -> bool:
        """Return true for the open item of a call that is not sent again, or not before a decision."""
        # The item is continued under its index, so it must be the last one of the output.
        if not fragment.is_open or fragment is not self._state.fragments[-1]:
            return False
        # Only the first call of a turn has an open item.
        pending = self._state.pending[0] if self._state.pending else None
        if pending is None or not pending.is_unanswered:
            return False
        is_its_item = bool(pending.items) and pending.items[0]["id"] == fragment.body["id"]
        waits = pending.decision is not None or not self._may_repeat(pending, knows_tools=False)
        return is_its_item and waits

    def resume(self) -> Fragment | None:
        """Apply the decisions about calls of an earlier process, and let calls with an unknown outcome wait for one.

        Return the item that stays open, if there is one. The tools must be prepared.
        """
        state = self._state
        kept = state.fragments.pop() if state.fragments else None
        if kept is not None:
            first = state.pending[0].call
            self._item_ids[first.call_id] = kept.body["id"]
            self._opened = self._open_item(first)
        self._update([self._resumed(pending) for pending in state.pending if pending.is_unanswered])
        return kept

    def _resumed(self, pending: PendingCall) -> PendingCall:
        decision = pending.decision
        if decision is None:
            if self._may_repeat(pending, knows_tools=True):
                return pending
            return self._request_decision(pending, WaitKind.UNKNOWN_OUTCOME)
        if decision.answer is None:
            return pending
        if (result := decision.result) is not None:
            return replace(self._returned(pending, result), decision=None)
        return replace(pending, decision=None, call=replace(pending.call, input=decision.input or pending.call.input))

    def _request_decision(self, pending: PendingCall, kind: WaitKind, *, question: Body | None = None) -> PendingCall:
        expires_at = self._now() + timedelta(seconds=self._wait_seconds or 0)
        decision = PendingDecision(id=new_id(_DECISION_PREFIX), kind=kind, expires_at=expires_at, question=question)
        waiting = replace(pending, decision=decision, items=self._final_items(pending.call, decision.unanswered))
        self._unrequested.append(waiting)
        return waiting

    def _final_items(self, call: Call, result: ToolResult) -> tuple[Body, ...]:
        return call_items.final_items(self._tools[call.name], call, self._open_item(call), result)

    def _may_repeat(self, pending: PendingCall, *, knows_tools: bool) -> bool:
        # The declaration at the time of the call counts. Rows of earlier releases have none.
        if pending.repeatable is False or not knows_tools:
            return pending.repeatable is not False
        tool = self._tools.find(pending.call.name)
        return tool is not None and (pending.repeatable or tool.may_repeat(pending.call.name))

    def complete_item(self, body: Body) -> list[Event]:
        """Return the events of the next item of the output, which is complete when it is added."""
        return whole_item(project(body, self._include), output_index=self._state.next_output_index)

    def close_at_end(self, fragment: Fragment) -> tuple[list[Event], list[OutputItem]] | None:
        """Return the closing events and items of a call whose item is open when the run ends; None for other items."""
        for pending in self._state.pending:
            items = pending.left_items
            if items and items[0]["id"] == fragment.body["id"] and fragment.is_open:
                self._closed.add(pending.call.call_id)
                events = call_items.close(items, output_index=fragment.output_index, include=self._include)
                return events, [OutputItem(body=body) for body in items]
        return None

    def show_at_end(self) -> tuple[list[Event], list[OutputItem]]:
        """Return the events and items of all other calls that were made and have no final item when the run ends."""
        events, items, state = list[Event](), list[OutputItem](), self._state
        for pending in state.pending:
            if pending.left_items and pending.call.call_id not in self._closed:
                index, taken = state.next_output_index + len(items), {item.body["id"] for item in state.output}
                shown, added = call_items.show(pending, output_index=index, include=self._include, taken=taken)
                events += shown
                items += added
        return events, items

    async def steps(self) -> AsyncGenerator[HostedStep, None]:
        """Yield steps until no call is pending, or until every call that is left waits for a decision.

        Stopping the iteration cancels the running calls.
        """
        running: dict[str, asyncio.Task[PendingCall]] = {}
        try:
            while self._state.pending:
                # Results are stored before further calls start: otherwise they would be lost if the process dies.
                if (result := self._state.pending[0].result) is not None:
                    yield self._finish(self._state.pending[0], result, running)
                elif self._unrequested:
                    yield self._wait_for_decisions()
                elif starting := await self._startable(running):
                    begun = self._start(starting)
                    yield begun
                    for pending in begun.calls:
                        running[pending.call.call_id] = asyncio.create_task(self._execute(pending))
                elif not running and self._state.pending[0].result is None:
                    return
                elif self._state.pending[0].result is None:
                    await self._wait(running)
                    if progress := self._progress_events(self._state.pending[0].call):
                        yield Emitted(progress)
                    returned = self._collect(running)
                    # If only the first call returned, its item follows immediately and `ToolFinished` has the result.
                    if returned and returned != self._state.pending[:1]:
                        yield ToolsReturned(calls=returned)
        finally:
            for task in running.values():
                task.cancel()
            # Wait for the cancelled tasks, so that no tool is still running when the run ends.
            if running:
                await asyncio.gather(*running.values(), return_exceptions=True)
                # The results that arrived before the calls were cancelled belong to the output of the ended run.
                self._update([task.result() for task in running.values() if _has_result(task)])

    def _report(self, call_id: str, event: ProgressEvent) -> None:
        self._progress.setdefault(call_id, []).append(event)
        self._progress_reported.set()

    async def _wait(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> None:
        """Wait until a call returns or reports progress."""
        listening = asyncio.create_task(self._progress_reported.wait())
        try:
            await asyncio.wait([*running.values(), listening], return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            # The caller reads the progress before its next await, so no report gets lost here.
            self._progress_reported.clear()

    def _progress_events(self, call: Call) -> list[Event]:
        # Progress of a call whose item is not open yet has no output index, so it waits.
        if self._opened is None:
            return []
        return [event(self._opened, self._state.next_output_index) for event in self._progress.pop(call.call_id, ())]

    async def _startable(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> list[PendingCall]:
        """Return the calls that can start now. If a budget refuses a call, the refusal becomes the call's result."""
        unsent = [p for p in self._state.pending if p.result is None and p.decision is None]
        waiting = [p for p in unsent if p.call.call_id not in running]
        starting: list[PendingCall] = []
        for pending in waiting[: max(0, self._tools.concurrency - len(running))]:
            call = pending.call
            key = self._tools[call.name].price_key(call.name)
            if self._tools.budget is not None and key is not None and parse_object(call.arguments) is not None:
                # Running calls of this turn may free some budget when they end. Without such calls, wait for the calls
                # of other runs.
                waits = not running and not starting
                match await self._tools.budget.reserve_call(call, key, waits=waits):
                    case Refuse(reason):
                        result = ToolResult(output=reason, error="insufficient_quota")
                        self._update([replace(pending, result=result, returned_at=self._now())])
                        continue
                    case None:
                        break
            starting.append(pending)
        return starting

    def _start(self, starting: Sequence[PendingCall]) -> ToolsStarted:
        calls = [self._sent(pending) for pending in starting]
        self._update(calls)
        self._state.has_called_tools = True
        # Only the first pending call opens its item, so that items do not overlap on the wire.
        first = self._state.pending[0]
        return ToolsStarted(
            calls=calls, started_at=self._now(), events=self._open(first.call) if first in calls else []
        )

    def _wait_for_decisions(self) -> CallsWaiting:
        waiting, self._unrequested = self._unrequested, []
        first = self._state.pending[0]
        return CallsWaiting(calls=waiting, events=self._open(first.call) if first in waiting else [])

    def _sent(self, pending: PendingCall) -> PendingCall:
        """Return a call that is about to be sent, with the items that show it if it is never answered."""
        call = pending.call
        return replace(
            pending,
            attempt=pending.attempt + 1,
            items=self._final_items(call, UNKNOWN_RESULT),
            repeatable=self._tools[call.name].may_repeat(call.name),
        )

    async def _execute(self, pending: PendingCall) -> PendingCall:
        call = replace(pending.call, effect_id=effect_id(self._response_id, pending.turn, pending.call.call_id))
        with self._tools.observe(self._tools[call.name].kind, call.name, call.call_id) as note_error:
            result = await self._result(call)
            if isinstance(result, InputRequired):
                return self._request_decision(pending, WaitKind.QUESTION, question=result.question)
            if result.error:
                note_error(result.error)
        return self._returned(pending, result)

    def _returned(self, pending: PendingCall, result: ToolResult) -> PendingCall:
        return replace(pending, result=result, items=self._final_items(pending.call, result), returned_at=self._now())

    async def _result(self, call: Call) -> ToolResult | InputRequired:
        if parse_object(call.arguments) is None:
            return ToolResult(output=_NO_OBJECT, error="invalid_arguments")
        tool = self._tools[call.name]
        limits = tool.limits()
        try:
            async with asyncio.timeout(limits.seconds):
                result = await tool.call(call)
        except TimeoutError:
            message = f"error: the tool did not answer within {limits.seconds:g} seconds"
            return ToolResult(output=message, error="timeout", cost=tool.price_key(call.name))
        if isinstance(result, InputRequired):
            return result if self._wait_seconds is not None else _CANNOT_WAIT
        result = result.storable()
        if len(result.output) <= limits.characters:
            return result
        return replace(result, output=result.output[: limits.characters] + _TRUNCATED)

    def _collect(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> list[PendingCall]:
        """Store the results of the calls that have returned, and return these calls in call order.

        Calls that wait for a decision are stored, but not returned.
        """
        done = {call_id: task.result() for call_id, task in running.items() if task.done()}
        for call_id in done:
            del running[call_id]
        self._update(list(done.values()))
        return [p for p in self._state.pending if p.call.call_id in done and p.result is not None]

    def _update(self, changed: Sequence[PendingCall]) -> None:
        new = {pending.call.call_id: pending for pending in changed}
        self._state.pending = [new.get(pending.call.call_id, pending) for pending in self._state.pending]

    def _finish(
        self, pending: PendingCall, result: ToolResult, running: dict[str, "asyncio.Task[PendingCall]"]
    ) -> ToolFinished:
        state = self._state
        events, items = self._close(pending.call, result)
        state.output += items
        state.pending = state.pending[1:]
        if result.parts:
            state.insertions.append(output_images(after=len(state.output), call=pending.call, images=result.parts))
        # The next call may have started long ago; its item was held back until now.
        following = state.pending[0] if state.pending else None
        if following and (following.result or following.decision or following.call.call_id in running):
            events += [*self._open(following.call), *self._progress_events(following.call)]
        return ToolFinished(
            call=pending.call,
            kind=self._tools[pending.call.name].kind,
            turn=pending.turn,
            result=result,
            ended_at=pending.returned_at or self._now(),
            items=items,
            events=events,
        )

    def _open(self, call: Call) -> list[Event]:
        if self._opened is not None:
            return []
        index = self._state.next_output_index
        self._opened = body = self._open_item(call)
        # The whole input is known by now, so its events follow at once.
        return [OutputItemAdded(output_index=index, item=announced(body)), *before_result(body, output_index=index)]

    def _open_item(self, call: Call) -> Body:
        body = self._tools[call.name].open_item(call)
        return {**body, "id": self._item_ids.setdefault(call.call_id, body["id"])}

    def _close(self, call: Call, result: ToolResult) -> tuple[list[Event], list[OutputItem]]:
        events = [*self._open(call), *self._progress_events(call)]
        index, opened, self._opened = self._state.next_output_index, self._opened, None
        items = call_items.final_items(self._tools[call.name], call, opened or {}, result)
        events += call_items.close(items, output_index=index, include=self._include)
        # A later turn may have a call of the same id, whose item is another one.
        self._item_ids.pop(call.call_id, None)
        return events, [OutputItem(body=body) for body in items]


def _has_result(task: "asyncio.Task[PendingCall]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
