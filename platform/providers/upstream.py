"""Adapter for upstreams: a turn is one request, in the upstream's API, whose answer becomes events.

An answer that is only used when it is complete is requested as one JSON document: reading and converting 64 tokens
takes 0.02 ms of CPU instead of 0.27 to 0.30 ms, and the log has 1 delta to write instead of 64. If the upstream streams
the answer anyway, it is accepted.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from core.json.large_work import off_loop
from core.load.load_limit import loop_delay
from core.telemetry import tracing
from engine.attachments import AttachmentMap
from engine.converter.base import TurnConverter
from engine.converter.chat import ChatConverter
from engine.converter.responses_api import ResponsesConverter
from engine.events.types import Body, Event, OutputItemDone
from engine.turn import Attempt, Target, TurnRequest, TurnResult
from providers import chat_completions, responses_api
from providers.answer_telemetry import answer_attributes
from providers.clients import (
    PostOptions,
    UpstreamFailed,
    count_invalid_event,
    for_client,
    note_failed_answer,
    post,
    read_piece,
)
from providers.event_stream import (
    NO_JSON,
    EventStreamDecoder,
    check_chunk,
    check_event,
    is_streamed,
    read_document,
    usage_only,
)
from providers.first_answer import FirstAnswer
from providers.http_client import Answer
from providers.long_answers import long_answers
from providers.reasoning_summaries import ReasoningSummarizer, summarize
from providers.upstream_errors import failure_from_error
from tenants.directory import Route


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """Implementation of `LanguageModel` for the upstream of a route. `patience`: see `Retries`.

    The first answer to any of its turns ends the wait of `first_answer`. `on_answer`, `target` and `has_others`: see
    `PostOptions`.
    """

    route: Route
    _: KW_ONLY
    summarizer: ReasoningSummarizer | None = None
    patience: float | None = None
    first_answer: FirstAnswer | None = None
    on_answer: Callable[[Route], None] | None = None
    target: Target | None = None
    has_others: bool = False

    def open(self, request: TurnRequest) -> "UpstreamTurn":
        """Start a turn. The request is sent when its events are iterated."""
        return UpstreamTurn(self, request)


class UpstreamTurn:
    """One upstream call. `attempts` are its HTTP requests so far, by default none."""

    def __init__(self, model: UpstreamModel, request: TurnRequest, attempts: list[Attempt] | None = None) -> None:
        self._model = model
        self._route = route = model.route
        if not request.streamed and (route.capabilities.always_stream or long_answers.come_from(route)):
            request = replace(request, streamed=True)
        self._request = request
        self._chat: tracing.ChatSpan | None = None
        self.closing: list[Event] = []
        """The events that close the items of a turn that has failed, if the model has several targets."""
        # Events that have not been sent because a summary is being written.
        self._unsent: list[Event] = []
        self.attempts: list[Attempt] = [] if attempts is None else attempts
        # The platform summarizes the reasoning of chat completions, and then hides the raw reasoning: clients would
        # show both. OpenAI returns summaries only, too.
        is_summarized = request.sampling.reasoning_summary is not None and not route.upstream.speaks_responses
        shared: dict[str, Any] = {
            "first_output_index": request.first_output_index,
            "sampling": request.sampling,
            "cipher": request.cipher,
            "show_raw": route.capabilities.raw_reasoning and not is_summarized,
            "to_failure": lambda error: for_client(route, failure_from_error(error)),
        }
        self._converter: TurnConverter
        if route.upstream.speaks_responses:
            self._path, self._check, self._body = "/responses", check_event, responses_api.request_body
            self._converter = ResponsesConverter(**shared, upstream_id=route.upstream.id)
        else:
            self._path, self._check, self._body = "/chat/completions", check_chunk, chat_completions.request_body
            self._converter = ChatConverter(**shared, think_tags=route.capabilities.think_tags)

    def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and yield the events of each network read."""
        address = urlsplit(self._route.upstream.base_url).hostname or ""
        self._chat = tracing.chat(model=self._route.upstream_model, address=address)
        converter, style = self._converter, self._request.sampling.reasoning_summary
        # Responses upstreams write summaries themselves.
        if style is None or not isinstance(converter, ChatConverter):
            return self._converted()
        return self._summarized(converter, style)

    async def _summarized(self, converter: ChatConverter, style: str) -> AsyncGenerator[list[Event], None]:
        async with aclosing(self._converted()) as reads:
            async for events in reads:
                yield await self._with_summaries(events, converter, style)

    async def _with_summaries(self, events: list[Event], converter: ChatConverter, style: str) -> list[Event]:
        ready: list[Event] = []
        for position, event in enumerate(events):
            item = converter.closed_reasoning(event.item["id"]) if isinstance(event, OutputItemDone) else None
            if item is None or not isinstance(event, OutputItemDone):
                ready.append(event)
                continue
            # If the turn is interrupted during `summarize`, these events still have to be sent.
            self._unsent = [*ready, *events[position:]]
            ready += await summarize(item, event, style=style, summarizer=self._model.summarizer)
        self._unsent = []
        return ready

    async def _converted(self) -> AsyncGenerator[list[Event], None]:
        converter, lines = self._converter, EventStreamDecoder(check=self._check, skips_invalid=True)
        try:
            attachments = await load_attachments(self._route, self._request)
            # Without a variable for the body, which would keep it in memory until the end of the answer.
            sent = self._post(await off_loop(partial(self._body, self._route, self._request, attachments)), attachments)
            began = time.monotonic()
            try:
                async with sent as response:
                    if not is_streamed(response):
                        yield converter.shown(converter.whole(await read_document(response, check=self._check)))
                    else:
                        # Not a generator: each takes 0.4 to 0.5 KB per open stream, and time for each read.
                        while piece := await read_piece(response):
                            joins_texts = loop_delay.is_late and settings.JOIN_LATE_TEXTS
                            yield converter.shown(converter.feed(lines.feed(piece), joins_texts=joins_texts))
                            if lines.done or lines.failure is not None or converter.over:
                                break
                        else:
                            yield converter.shown(converter.feed(lines.end()))
                        if lines.held is not None:
                            count_invalid_event(self._route)
                            if converter.is_completed_by(lines.held):
                                yield converter.shown(converter.feed(lines.held))
                            else:
                                converter.feed(usage_only(lines.held))
                                converter.fail(NO_JSON)
                        if lines.failure is not None and not converter.over:
                            note_failed_answer(
                                self._route,
                                self._path,
                                lines.failure,
                                self.attempts,
                                is_logged=self._model.target is None,
                            )
                            converter.fail(for_client(self._route, lines.failure))
            finally:
                if not self._request.streamed:
                    long_answers.observe(self._route, time.monotonic() - began)
        except UpstreamFailed as failed:
            # A connection that breaks after the finish reason has lost at most the usage.
            if not converter.is_finished:
                converter.fail(failed.failure)
        closing = converter.shown(converter.end(done=lines.done))
        if self._model.target is not None and converter.has_failed:
            # Another target may continue the open item.
            self.closing = closing
        else:
            yield closing

    def _post(self, body: Body, attachments: AttachmentMap) -> AbstractAsyncContextManager[Answer]:
        route, request = self._route, self._request
        options = PostOptions(
            may_repeat=request.may_repeat,
            patience=self._model.patience,
            first_answer=self._model.first_answer,
            on_answer=self._model.on_answer,
            span=None if self._chat is None else self._chat.span,
            target=self._model.target,
            has_others=self._model.has_others,
            counted=request,
            silent=not request.streamed,
            retry_body=None if request.streamed else self._streamed_body(attachments),
        )
        return post(route, self._path, body, attempts=self.attempts, options=options)

    def _streamed_body(self, attachments: AttachmentMap) -> Callable[[], Body]:
        return lambda: self._body(self._route, replace(self._request, streamed=True), attachments)

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        return self._traced(self._converter.result(attempts=self.attempts))

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Return the events that close open items, and the partial result."""
        events = [*self._unsent, *self._converter.shown(self._converter.interrupt())]
        return events, self._traced(self._converter.result(interrupted=True, attempts=self.attempts))

    def _traced(self, result: TurnResult) -> TurnResult:
        if result.usage is not None and self.attempts:
            self.attempts[-1].settle(result.usage)
        if self._chat is not None:
            failure = result.failure
            self._chat.end(
                answer_attributes(result, self.attempts), error_type=None if failure is None else failure.code
            )
        return result


async def load_attachments(route: Route, request: TurnRequest) -> AttachmentMap:
    """Return the images and files of a request as the upstream reads them."""
    if request.attachments is None:
        return {}
    can = route.capabilities
    return await request.attachments.load(request.items, files=can.files, inline_images=can.inline_images)
