"""Compaction pass: the model writes notes on the conversation, which replace it from then on.

A pass is a separate turn between two others, so it never separates a call from its output.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from conversations.items import InputMessage, StoredItem, plain_text
from core.errors import Failure, UpstreamError
from core.ids import new_id
from engine import turn_request
from engine.calls.toolbox import Toolbox
from engine.compaction import items as compaction
from engine.compaction import token_estimate, window
from engine.compaction.items import CompactionContent, CompactionPlan
from engine.events.tools import CompactionCompacting
from engine.events.types import Body, Delta, Event, OutputItemAdded, OutputItemDone
from engine.state import Fragment, OutputItem, RunContext, RunState
from engine.steps import ContextCompacted, Emitted, TurnRecord, lost_usage
from engine.turn import Finish, LanguageModel, Sampling, TurnRequest, TurnResult, TurnStream, Usage

_ASK = (
    "[Automatic request] This conversation is about to be shortened: everything except the messages of users and "
    "developers will be replaced by your notes. Write these notes now, for yourself, so that you can continue "
    "without the rest. Include what was asked for and what has been done; what was decided, and what was ruled out and "
    "why; facts, figures, names, ids, paths and addresses, word for word; results of tool calls that still matter, "
    "and calls that are still open; what is to be done next. Add nothing that is not in it, do not answer the user, "
    "and call no tool."
)
_TRUNCATED = "The compaction failed: the model's server cut the notes short."
_EMPTY = "The compaction failed: the model wrote no notes."


class Compactor:
    """Compaction passes of one run. `failure` is set if the last pass failed."""

    def __init__(
        self, context: RunContext, state: RunState, *, model: LanguageModel, tools: Toolbox, now: Callable[[], datetime]
    ) -> None:
        self._context = context
        self._state = state
        self._model = model
        self._tools = tools
        self._now = now
        self._began = now()
        self._stream: TurnStream | None = None
        self._request: TurnRequest | None = None
        # Compaction item whose `output_item.added` was emitted, but not its `output_item.done`.
        self._opened: Body | None = None
        # Tokens that the upstream reported up to the last turn, and the number of the run's items that they include.
        self._counted: tuple[int, int] | None = None
        self.failure: Failure | None = None

    @classmethod
    def at_once(
        cls, context: RunContext, state: RunState, *, model: LanguageModel, tools: Toolbox, now: Callable[[], datetime]
    ) -> "Compactor":
        """Return the compactor of a run that consists of one pass."""
        context = replace(context, compaction=CompactionPlan(at_once=True))
        return cls(context, state, model=model, tools=tools, now=now)

    # -- decision ------------------------------------------------------------------------------------------------------

    @property
    def is_only_step(self) -> bool:
        """True if the run consists of one compaction pass, without an answer."""
        return self._context.compaction is not None and self._context.compaction.at_once

    @property
    def is_running(self) -> bool:
        """True while the model writes the notes."""
        return self._stream is not None

    def is_due(self) -> bool:
        """Return True if the next step is a pass: it was requested or announced, or the threshold is exceeded."""
        context, state = self._context, self._state
        plan = context.compaction
        if plan is None or context.cipher is None:
            return False
        if plan.at_once:
            return not state.has_compacted
        if self._opened is not None:
            return True
        # Not between a rejected turn and its retry: the feedback refers to the turn directly before it.
        if state.compaction_failed or state.rejected is not None:
            return False
        current = turn_request.current_context(context, state)
        # Nothing to summarize: a pass would keep every item.
        if len(compaction.kept_items(current.rest)) == len(current.rest):
            return False
        limit = plan.limit(context.traits.context_window)
        # If the kept items alone exceed the threshold, the context has to grow by another threshold before the next
        # pass. Otherwise every turn would be followed by one.
        left = self._tokens(current.compacted) if current.compacted else 0
        return self._next_input_tokens() > (limit if left <= limit else left + limit)

    def is_needed(self) -> bool:
        """Return True if the run cannot continue without the pass that failed."""
        context = self._context
        too_long = window.is_too_long(
            window=context.traits.context_window,
            instructions=context.instructions,
            items=turn_request.all_items(context, self._state),
            sampling=self._sampling(),
            attachments=context.attachments,
        )
        return (
            self.is_only_step or self._opened is not None or (too_long and context.parameters["truncation"] != "auto")
        )

    def record_usage(self, usage: Usage) -> None:
        """Record the usage of a turn whose items are in the state: the next turn reads its input and output."""
        # Reasoning is not sent back to most models.
        tokens = usage.input_tokens + usage.output_tokens - usage.reasoning_tokens
        is_known = tokens and not usage.estimated
        self._counted = (tokens, len(self._state.context_items())) if is_known else None

    def _next_input_tokens(self) -> int:
        # Tokens of the next turn: the upstream's count for the last turn, an estimate for everything newer.
        if self._counted is None:
            return self._tokens(turn_request.all_items(self._context, self._state))
        tokens, known = self._counted
        new = self._state.context_items()[known:]
        attachments = self._context.attachments
        return tokens + token_estimate.input_tokens(
            instructions=None, items=new, sampling=Sampling(), attachments=attachments
        )

    def _tokens(self, items: Sequence[StoredItem]) -> int:
        context = self._context
        return token_estimate.input_tokens(
            instructions=context.instructions, items=items, sampling=self._sampling(), attachments=context.attachments
        )

    def _sampling(self) -> Sampling:
        sampling = self._context.sampling
        return replace(sampling, tools=(*sampling.tools, *self._tools.functions()))

    # -- pass ----------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue with the pass that an earlier process has announced: this process emits its item."""
        fragments = self._state.fragments
        if fragments and fragments[-1].is_open and fragments[-1].body["type"] == "compaction":
            self._opened = fragments.pop().body

    async def steps(self) -> AsyncGenerator[Emitted | ContextCompacted, None]:
        """Yield the steps of one pass."""
        self.failure = None
        self._began = self._now()
        self._request = self.build_request()
        self._stream = self._model.open(self._request)
        async with aclosing(self._stream.events()) as turn:
            async for written in turn:
                # Announced at the first delta only: a pass that the upstream rejects must not appear in the output.
                if self._opened is None and any(isinstance(event, Delta) for event in written):
                    yield Emitted(self._announced())
        result = self._stream.result()
        self._stream = None
        yield self._finish(result)

    def interrupt(self) -> TurnRecord | None:
        """End the pass in progress, if any, and return its record, because its tokens were spent."""
        if self._stream is None:
            return None
        _, result = self._stream.interrupt()
        self._stream = None
        return self._record(result)

    def fragment(self) -> Fragment | None:
        """Return the announced item of an unfinished pass as a fragment; None if none was announced."""
        if self._opened is None:
            return None
        body, self._opened = self._opened, None
        return Fragment(output_index=self._state.next_output_index, body=body, is_open=True)

    def kept(self) -> list[StoredItem]:
        """Return the items that are kept verbatim."""
        # Only items of the input: user messages that the run itself inserts (feedback, images) are not the user's.
        context, state = self._context, self._state
        own = () if state.has_compacted else context.items[context.instruction_items + context.compacted_items :]
        # Without the notes of an earlier compaction, which the new notes cover.
        return compaction.kept_items([*turn_request.current_context(context, state).compacted[:-1], *own])

    def kept_messages(self) -> list[Body]:
        """Return the user's messages among the items that are kept."""
        return [item.with_id() for item in self.kept() if isinstance(item, InputMessage) and item.role == "user"]

    def _announced(self) -> list[Event]:
        index = self._state.next_output_index
        self._opened = {"id": new_id("cmp"), "type": "compaction", "encrypted_content": ""}
        return [OutputItemAdded(output_index=index, item=self._opened), CompactionCompacting(self._opened["id"], index)]

    def build_request(self) -> TurnRequest:
        """Return the conversation as the model knows it, followed by a request for notes that is not stored."""
        context = self._context
        sampling = self._sampling()
        return TurnRequest(
            model=context.model,
            instructions=context.instructions,
            items=[*turn_request.all_items(context, self._state), InputMessage(role="user", content=_ASK)],
            sampling=replace(
                sampling,
                tool_choice="none" if sampling.tools else None,
                max_output_tokens=None,
                top_logprobs=None,
                logprobs=False,
                reasoning_summary=None,
                verbosity=None,
                response_format=None,
            ),
            first_output_index=self._state.next_output_index,
            attachments=context.attachments,
            cipher=context.cipher,
        )

    def _finish(self, result: TurnResult) -> ContextCompacted:
        cipher, state = self._context.cipher, self._state
        # A refusal is not a summary.
        written = (
            "".join(part["text"] for part in item["content"] if part["type"] == "output_text").strip()
            for item in result.items
            if item["type"] == "message"
        )
        summary = "\n\n".join(filter(None, written))
        self.failure = result.failure
        if self.failure is None and (result.finish is Finish.LENGTH or not summary):
            message = _TRUNCATED if result.finish is Finish.LENGTH else _EMPTY
            self.failure = Failure.of(UpstreamError(message))
        if self.failure is not None or cipher is None:
            state.compaction_failed = True
            return ContextCompacted(turn=self._record(result), items=[], events=[])
        events = self._announced() if self._opened is None else []
        kept = [item.wire() for item in self.kept()]
        encrypted = cipher.encrypt_compaction(CompactionContent(summary=summary, kept=kept))
        item = OutputItem(body={**(self._opened or {}), "encrypted_content": encrypted})
        events.append(OutputItemDone(output_index=state.next_output_index, item=item.body))
        self._opened = self._counted = None
        state.output.append(item)
        return ContextCompacted(turn=self._record(result), items=[item], events=events)

    def _request_tokens(self) -> int:
        return self._tokens(self._request.items) if self._request is not None else 0

    def _record(self, result: TurnResult) -> TurnRecord:
        # A pass counts as a turn, but not as an answer: `tool_choice` still applies to the turn after it.
        state = self._state
        usage = result.usage
        if usage is None:
            usage = Usage()
            if self._request is not None and result.may_be_charged:
                tokens = token_estimate.tokens(*map(plain_text, result.items))
                usage = Usage(input_tokens=self._request_tokens(), output_tokens=tokens, estimated=True)
        record = TurnRecord(
            number=state.turn,
            started_at=self._began,
            ended_at=self._now(),
            result=result,
            usage=usage,
            compacts=True,
            failed=self.failure is not None,
            repeated=lost_usage(result, input_tokens=self._request_tokens),
        )
        state.turn += 1
        state.usage += record.total_usage
        state.note_target(result)
        state.compactions += 1
        state.compaction_tokens += usage.output_tokens
        return record
