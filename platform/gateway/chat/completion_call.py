"""The upstream call of a chat completion: its limits, its usage and its rows."""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

import limits
from core.ids import new_id
from engine.compaction.token_estimate import tokens
from engine.converter.base import later_usage, nested_usage
from engine.converter.chat import Chunk
from engine.turn import Usage
from gateway.chat import capabilities, stored
from gateway.chat.answer_check import AnswerCheck
from gateway.chat.requests import ChatRequest
from gateway.chat.targets import CompletionTargets
from limits import LEAST_OUTPUT, end_user_of
from limits.throttle import is_limited
from providers.clients import UpstreamFailed
from providers.dialects import dialect_of
from providers.http_client import Answer
from providers.upstream_errors import failure_from_error
from responses.runs import cost_bounds
from responses.runs.rows import Row
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from tenants.directory import Route


class CompletionCall:
    """Upstream call of a chat completion: collects its usage and writes its rows.

    `own_id` is the id of a completion that is stored, or else None. `sent` is the request with images as data URLs.
    """

    def __init__(self, routed: RoutedCall, request: ChatRequest, sent: ChatRequest) -> None:
        self.sent = sent
        # Stored completions get an id from us, as the ids of different upstreams may collide.
        self.own_id = stored.completion_id() if request.body.store else None
        self._routed = routed
        self._request = request
        self._chunks = 0
        self._usage: Usage | None = None
        self._tier = ""
        self._id = new_id("chatcmpl")
        self._limit = request.body.max_completion_tokens or request.body.max_tokens
        self._stated: int | None = None
        self._ended: asyncio.Future[None] | None = None
        self.targets = CompletionTargets(routed)

    @property
    def route(self) -> Route:
        """The target that the next request is sent to."""
        return self.targets.route

    def post(self, **stream: Any) -> AbstractAsyncContextManager[Answer]:
        """Send the request to the present target, with these parameters of streaming."""
        limit = {}
        if self._stated is not None:
            limit = {dialect_of(self.route).limit: max(1, self._stated - tokens(self.targets.prefix))}
        values = {**capabilities.upstream_values(self.sent, self.route), **stream, **limit}
        path, routed = "/chat/completions", self._routed
        if (queue := self.targets.queue) is None:
            return routed.post(path, values)
        values = self.targets.with_prefix(values)
        return routed.post_to(self.route, path, values, patience=queue.seconds, has_others=queue.has_others)

    async def fails_over(
        self, failed: UpstreamFailed, *, sent_text: str = "", can_continue: bool = True, is_answered: bool = False
    ) -> bool:
        """Go on to the next target after an answer that has failed or was cut; see `CompletionTargets`."""
        last = self._routed.attempts[-1] if self._routed.attempts else None
        if not await self.targets.fails_over(
            failed, sent_text=sent_text, can_continue=can_continue, is_answered=is_answered
        ):
            return False
        if last is not None:
            last.output_tokens = self._chunks
            last.usage = None if self._usage is None else replace(self._usage, service_tier=self._tier)
        self._chunks, self._usage, self._tier = 0, None, ""
        return True

    def named(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return chunks or completions with the public name of the model if there are several targets.

        The upstreams may have different names for it.
        """
        if not self._routed.targets:
            return chunks
        return [{**chunk, "model": self.route.model} for chunk in chunks]

    async def reserve(self) -> None:
        """Reserve the limits of the call, which may lower the maximum of its output."""
        body, principal = self._request.body, self._routed.principal
        if not is_limited(principal):
            return
        end_user, choices = end_user_of(self._routed.end_user), body.n or 1
        given = body.max_completion_tokens or body.max_tokens
        for subject in await limits.applying(principal, end_user):
            given = min(given or sys.maxsize, subject.values.get("max_output_tokens", sys.maxsize))
        stated = None if given in {None, sys.maxsize} else given
        can = cost_bounds.widest([route.capabilities for route in self._routed.targets or (self.route,)])
        allowed = await self._routed.reserve(
            partial(cost_bounds.of_body, self._request.values, can),
            ExpectedTokens(
                input=self._request.estimate_tokens(),
                max_output=None if stated is None else stated * choices,
                least_output=LEAST_OUTPUT * choices,
            ),
            service_tier=body.service_tier,
            is_stream=bool(body.stream),
        )
        if stated is None and allowed is not None:
            stated = max(1, allowed // choices)
        self._limit = stated or self._limit
        self._stated = stated

    async def open(self) -> None:
        """Store the data with which the call is recorded if this process dies. To be called before sending."""
        await self._routed.open(self.own_id or self._id)

    def observe(self, data: Chunk) -> None:
        """Read usage and id from a completion or a chunk."""
        self._chunks += 1
        self._id = str(data.get("id") or self._id)
        if isinstance(tier := data.get("service_tier"), str):
            self._tier = tier[:40]
        self._usage = later_usage(self._usage, data.get("usage") or nested_usage(data))

    def observe_whole(self, completion: Chunk) -> None:
        """Read usage and id from a completion that was not streamed."""
        self.observe(completion)
        choices = completion.get("choices")
        messages = [choice.get("message") for choice in choices or () if isinstance(choice, dict)]
        if self._usage is None or not self._usage.output_tokens:
            self._chunks = tokens(*(orjson.dumps(message).decode() for message in messages))

    def check(self) -> AnswerCheck:
        """Return the check of the answer."""
        several = (self._request.body.n or 1) > 1
        return AnswerCheck(several=several, to_failure=failure_from_error, limit=self._limit)

    def row_for(self, completion: Chunk) -> Row | None:
        """Return the row of the completion; None if the client did not ask to store it."""
        if self.own_id is None:
            return None
        return stored.build_row(self._request, self._routed, completion_id=self.own_id, completion=completion)

    async def end(self, *, outcome: str, row: Row | None = None) -> None:
        """Commit the usage record and `row`; only the first call has an effect."""
        if self._ended is None:
            if outcome == "stop":
                self.targets.succeeded()
            self._ended = asyncio.ensure_future(self._write(outcome, row))
        # Shielded: a client that disconnects at this moment must not prevent the commit.
        await asyncio.shield(self._ended)

    async def _write(self, outcome: str, row: Row | None) -> None:
        # If the upstream has reported no usage, each streamed chunk counts as one output token.
        usage = self._usage or self._routed.unreported(output_tokens=self._chunks)
        if not (usage.input_tokens and usage.output_tokens) and self._routed.may_be_charged:
            estimate = self._routed.unreported(output_tokens=self._chunks)
            usage = replace(
                usage,
                input_tokens=usage.input_tokens or estimate.input_tokens,
                output_tokens=usage.output_tokens or estimate.output_tokens,
                estimated=True,
            )
        usage, rows = replace(usage, service_tier=self._tier), () if row is None else (row,)
        failures = self.targets.failures(has_failed=outcome == "failed")
        await self._routed.write(
            object_id=self.own_id or self._id,
            outcome=outcome,
            usage=usage,
            rows=rows,
            failed_targets=failures,
            keeps_content=self.own_id is not None,
        )
