"""Makes the hosted calls of a turn: several at a time, their items one after the other, no call twice."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from conversations.items import project
from responses.engine.calls.item_events import inside
from responses.engine.calls.outcomes import ToolResult, parse_object
from responses.engine.calls.port import ProgressEvent, ProgressReporter, Toolbox
from responses.engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from responses.engine.state import OutputItem, PendingCall, RunState, user_parts
from responses.engine.steps import Emitted, ToolFinished, ToolsReturned, ToolsStarted
from responses.engine.turn import Call

_NO_OBJECT = "error: the arguments of this call are not a JSON object, so it was not made"
_CUT = "\n[The output of the tool was cut here: it is too long.]"
HostedStep = Emitted | ToolsStarted | ToolsReturned | ToolFinished


class HostedCalls:
    """Works off `RunState.pending`. That some calls are about to be made is a step of its own, made before they are; a
    result is kept as soon as it is there; its item waits until those of the calls in front of it are closed."""

    def __init__(
        self, state: RunState, tools: Toolbox, *, now: Callable[[], datetime], include: frozenset[str] = frozenset()
    ) -> None:
        self._state = state
        self._include = include
        self._tools = tools
        self._now = now
        self._opened: Body | None = None
        self._progress: dict[str, list[ProgressEvent]] = {}
        self._progress_reported = asyncio.Event()
        if isinstance(tools, ProgressReporter):
            tools.report_progress_to(self._report)

    def unrepeatable_call(self) -> Call | None:
        """A call that somebody had begun, and that nobody may begin again."""
        begun = (p for p in self._state.pending if p.attempt and p.result is None)
        return next((p.call for p in begun if not self._tools.may_repeat(p.call.name)), None)

    async def steps(self) -> AsyncGenerator[HostedStep, None]:
        """Until no call is pending. Stopping the iteration cancels what is under way."""
        running: dict[str, asyncio.Task[PendingCall]] = {}
        try:
            while self._state.pending:
                # Before others are begun: a result that is not kept yet would be lost with them.
                if (result := self._state.pending[0].result) is not None:
                    yield self._finish(self._state.pending[0], result, running)
                elif starting := self._startable(running):
                    begun = self._start(starting)
                    yield begun
                    for pending in begun.calls:
                        running[pending.call.call_id] = asyncio.create_task(self._execute(pending))
                else:
                    await self._wait(running)
                    if told := self._progress_events(self._state.pending[0].call):
                        yield Emitted(told)
                    returned = self._collect(running)
                    if returned and returned != self._state.pending[:1]:
                        yield ToolsReturned(calls=returned)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    def _report(self, call_id: str, event: ProgressEvent) -> None:
        self._progress.setdefault(call_id, []).append(event)
        self._progress_reported.set()

    async def _wait(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> None:
        """Until a call has come back, or has something to tell."""
        listening = asyncio.create_task(self._progress_reported.wait())
        try:
            await asyncio.wait([*running.values(), listening], return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            self._progress_reported.clear()

    def _progress_events(self, call: Call) -> list[Event]:
        """The events of what a call has told since its item was opened; before that, it waits."""
        if self._opened is None:
            return []
        return [event(self._opened, self._state.next_output_index) for event in self._progress.pop(call.call_id, ())]

    def _startable(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> list[PendingCall]:
        waiting = [p for p in self._state.pending if p.result is None and p.call.call_id not in running]
        return waiting[: max(0, self._tools.concurrency - len(running))]

    def _start(self, starting: Sequence[PendingCall]) -> ToolsStarted:
        calls = [replace(pending, attempt=pending.attempt + 1) for pending in starting]
        self._update(calls)
        first = self._state.pending[0]
        return ToolsStarted(
            calls=calls, started_at=self._now(), events=self._open(first.call) if first in calls else []
        )

    async def _execute(self, pending: PendingCall) -> PendingCall:
        result = await self._result(pending.call)
        return replace(pending, result=result, returned_at=self._now())

    async def _result(self, call: Call) -> ToolResult:
        if parse_object(call.arguments) is None:
            return ToolResult(output=_NO_OBJECT, error="invalid_arguments")
        limits = self._tools.limits(call.name)
        try:
            async with asyncio.timeout(limits.seconds):
                result = (await self._tools.call(call)).storable()
        except TimeoutError:
            message = f"error: the tool did not answer within {limits.seconds:g} seconds"
            return ToolResult(output=message, error="timeout")
        if len(result.output) <= limits.characters:
            return result
        return replace(result, output=result.output[: limits.characters] + _CUT)

    def _collect(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> list[PendingCall]:
        """What has come back, in the order of the calls."""
        done = {call_id: task.result() for call_id, task in running.items() if task.done()}
        for call_id in done:
            del running[call_id]
        self._update(list(done.values()))
        return [pending for pending in self._state.pending if pending.call.call_id in done]

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
            state.insertions.append(user_parts(after=len(state.output), parts=result.parts))
        following = state.pending[0] if state.pending else None
        if following and (following.result or following.call.call_id in running):
            events += [*self._open(following.call), *self._progress_events(following.call)]
        return ToolFinished(
            call=pending.call,
            turn=pending.turn,
            result=result,
            ended_at=pending.returned_at or self._now(),
            items=items,
            events=events,
        )

    def _open(self, call: Call) -> list[Event]:
        """The events that open the item of the first call, once."""
        if self._opened is not None:
            return []
        index = self._state.next_output_index
        self._opened = body = self._tools.open_item(call)
        return [OutputItemAdded(output_index=index, item=body), *self._tools.opening_events(body, call, index)]

    def _close(self, call: Call, result: ToolResult) -> tuple[list[Event], list[OutputItem]]:
        events = [*self._open(call), *self._progress_events(call)]
        index, opened, self._opened = self._state.next_output_index, self._opened, None
        closed = self._tools.close_item(opened or {}, call, result, index)
        events += [*closed.events, OutputItemDone(output_index=index, item=project(closed.item, self._include))]
        for offset, body in enumerate(closed.more, start=1):
            events += whole_item(project(body, self._include), output_index=index + offset)
        return events, [OutputItem(body=body) for body in (closed.item, *closed.more)]


def whole_item(body: Body, *, output_index: int) -> list[Event]:
    """The events of an item that opens as what it is."""
    opened = {**body, "status": "in_progress"} if "status" in body else body
    within = inside(body, output_index=output_index)
    return [
        OutputItemAdded(output_index=output_index, item={**opened, "output": []} if within else opened),
        *within,
        OutputItemDone(output_index=output_index, item=body),
    ]
