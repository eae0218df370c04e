"""Execution of a turn's hosted calls: concurrent, with items in call order. No call that may have run is repeated."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property

from conversations.items import HOSTED_CALLS, UPSTREAM_CALL_ID, project
from engine.calls.item_events import after_result, announced, before_result, inside
from engine.calls.outcomes import Refuse, ToolResult, parse_object
from engine.calls.toolbox import ProgressEvent, Toolbox
from engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from engine.state import OutputItem, PendingCall, RunState, output_images
from engine.steps import Emitted, ToolFinished, ToolsReturned, ToolsStarted
from engine.turn import Call

_NO_OBJECT = "error: the call was not made because its arguments are not a JSON object"
_TRUNCATED = "\n[The output of the tool is too long and was truncated here.]"
HostedStep = Emitted | ToolsStarted | ToolsReturned | ToolFinished


class HostedCalls:
    """Runs the calls in `RunState.pending`.

    Before calls start, a step records that they may take effect. A result is stored as soon as it arrives; its item
    waits until the items of all earlier calls are closed.
    """

    def __init__(
        self, state: RunState, tools: Toolbox, *, now: Callable[[], datetime], include: frozenset[str] = frozenset()
    ) -> None:
        self._state = state
        self._include = include
        self._tools = tools
        self._now = now
        self._opened: Body | None = None
        self._progress: dict[str, list[ProgressEvent]] = {}
        for tool in tools.tools:
            tool.report = self._report

    @cached_property
    def _progress_reported(self) -> asyncio.Event:
        # Created by the first hosted call, because most runs have none and an event takes 0.8 KB.
        return asyncio.Event()

    def unrepeatable_call(self) -> Call | None:
        """Return a call that an earlier process started and that must not be repeated; None if there is none."""
        for pending in self._state.pending:
            if pending.attempt and pending.result is None:
                tool = self._tools.find(pending.call.name)
                if tool is None or not tool.may_repeat(pending.call.name):
                    return pending.call
        return None

    async def steps(self) -> AsyncGenerator[HostedStep, None]:
        """Yield steps until no call is pending. Stopping the iteration cancels the running calls."""
        running: dict[str, asyncio.Task[PendingCall]] = {}
        try:
            while self._state.pending:
                # Results are stored before further calls start: otherwise they would be lost if the process dies.
                if (result := self._state.pending[0].result) is not None:
                    yield self._finish(self._state.pending[0], result, running)
                elif starting := await self._startable(running):
                    begun = self._start(starting)
                    yield begun
                    for pending in begun.calls:
                        running[pending.call.call_id] = asyncio.create_task(self._execute(pending))
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
        waiting = [p for p in self._state.pending if p.result is None and p.call.call_id not in running]
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
        calls = [replace(pending, attempt=pending.attempt + 1) for pending in starting]
        self._update(calls)
        # Only the first pending call opens its item, so that items do not overlap on the wire.
        first = self._state.pending[0]
        return ToolsStarted(
            calls=calls, started_at=self._now(), events=self._open(first.call) if first in calls else []
        )

    async def _execute(self, pending: PendingCall) -> PendingCall:
        call = pending.call
        with self._tools.observe(self._tools[call.name].kind, call.name, call.call_id) as note_error:
            result = await self._result(call)
            if result.error:
                note_error(result.error)
        return replace(pending, result=result, returned_at=self._now())

    async def _result(self, call: Call) -> ToolResult:
        if parse_object(call.arguments) is None:
            return ToolResult(output=_NO_OBJECT, error="invalid_arguments")
        tool = self._tools[call.name]
        limits = tool.limits()
        try:
            async with asyncio.timeout(limits.seconds):
                result = (await tool.call(call)).storable()
        except TimeoutError:
            message = f"error: the tool did not answer within {limits.seconds:g} seconds"
            return ToolResult(output=message, error="timeout", cost=tool.price_key(call.name))
        if len(result.output) <= limits.characters:
            return result
        return replace(result, output=result.output[: limits.characters] + _TRUNCATED)

    def _collect(self, running: dict[str, "asyncio.Task[PendingCall]"]) -> list[PendingCall]:
        """Store the results of the calls that have returned, and return these calls in call order."""
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
            state.insertions.append(output_images(after=len(state.output), call=pending.call, images=result.parts))
        # The next call may have started long ago; its item was held back until now.
        following = state.pending[0] if state.pending else None
        if following and (following.result or following.call.call_id in running):
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
        self._opened = body = self._tools[call.name].open_item(call)
        # The whole input is known by now, so its events follow at once.
        return [OutputItemAdded(output_index=index, item=announced(body)), *before_result(body, output_index=index)]

    def _close(self, call: Call, result: ToolResult) -> tuple[list[Event], list[OutputItem]]:
        events = [*self._open(call), *self._progress_events(call)]
        index, opened, self._opened = self._state.next_output_index, self._opened, None
        closed, *more = self._tools[call.name].close_items(opened or {}, call, result)
        shown = project(closed, self._include)
        if closed["type"] in HOSTED_CALLS:
            closed = {UPSTREAM_CALL_ID: call.call_id, **closed}
        events += after_result(closed, output_index=index)
        events.append(OutputItemDone(output_index=index, item=shown))
        for offset, body in enumerate(more, start=1):
            events += whole_item(project(body, self._include), output_index=index + offset)
        return events, [OutputItem(body=body) for body in (closed, *more)]


def whole_item(body: Body, *, output_index: int) -> list[Event]:
    """Return the events of an item that is complete when it is added."""
    opened = {**body, "status": "in_progress"} if "status" in body else body
    within = inside(body, output_index=output_index)
    return [
        OutputItemAdded(output_index=output_index, item={**opened, "output": []} if within else opened),
        *within,
        OutputItemDone(output_index=output_index, item=body),
    ]
