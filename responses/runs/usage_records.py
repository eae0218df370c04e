"""Usage records of upstream calls outside of runs. Runs write their usage records together with their turns."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any, TypeVar

from core.clock import now
from core.ids import new_id
from engine.converter.base import reported_usage
from engine.steps import estimated_usage
from engine.turn import Attempt, Usage
from limits import LEAST_OUTPUT, Demand, UnknownPrice, end_user_of
from limits.throttle import is_limited
from providers.clients import Form, PostOptions, post
from providers.http_client import Answer
from providers.targets.forwarding import ForwardedCall, options_for, route_of
from responses.runs import cost_bounds, open_calls
from responses.runs.reservations import LEAST_SHARE, CallReservation
from responses.runs.rows import Row, new_row
from responses.runs.run_metrics import count_usage
from responses.runs.store import CallGuard, Change, LeaseLost, submit_new
from tenants import directory
from tenants.directory import Route
from tenants.models import UsageRecord
from tenants.prices import Maxima, PriceList, Quantities, possible_tiers
from tenants.principal import Principal

Spent = tuple[str, Usage]
"""The id of the object for which a call was made, and the usage of the call."""


def usage_columns(usage: Usage, prices: PriceList, *, at: datetime, tier: str = "") -> dict[str, Any]:
    """Return the values of a usage record: tokens by kind, service tier, cost, and the prices that were applied.

    `at` is the start of the call, which decides which prices were valid. `tier` is used if `usage` has no service tier.
    """
    tier = usage.service_tier or tier
    quantities = Quantities(
        **{name: getattr(usage, name) for name in _QUANTITIES},
        # A call without usage was refused or failed before it began, so it counts as no call. Each image counts as one
        # call: with a price per call, a request for four images costs four times as much.
        calls=(usage.images or 1) if any(getattr(usage, name) for name in _QUANTITIES) or usage.images else 0,
    )
    cost = prices.cost(quantities, tier=tier, at=at)
    return {
        **{name: getattr(usage, name) for name in _COLUMNS},
        "service_tier": tier[:40],
        "cost": None if cost is None else cost.total,
        "prices": None if cost is None else cost.stored(),
    }


def waive(record: Row) -> None:
    """Set the cost of an estimated record to zero. The record keeps the prices and so the cost of the estimate."""
    if record.values["estimated"] and record.values["cost"] is not None:
        record.values["cost"] = Decimal(0)


_QUANTITIES = tuple({column.name for column in fields(Usage)} & {column.name for column in fields(Quantities)})
# Cached audio and image tokens have no columns; they are only in the applied prices.
_COLUMNS = tuple(
    {column.name for column in fields(Usage)} - {"cached_audio_tokens", "cached_image_tokens", "service_tier"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTokens:
    """The tokens that a call is expected to use: an estimate of its input, and the range of its output.

    `max_output` is None if the request states no maximum.
    """

    input: int = 0
    max_output: int | None = 0
    least_output: int = LEAST_OUTPUT


Begun = TypeVar("Begun")


def _for_model(body: dict[str, Any] | Form, model: str) -> dict[str, Any] | Form:
    """Return a request with another model."""
    return replace(body, fields={**body.fields, "model": model}) if isinstance(body, Form) else {**body, "model": model}


@dataclass(slots=True, kw_only=True)
class RoutedCall:
    """One upstream call on behalf of a principal. Its duration counts from the creation of this object.

    `attempts` are its HTTP requests, each of which gets a usage record. `estimate_input` returns an estimate of the
    input tokens for requests whose usage is unknown. `targets` are set if the call may be sent to several targets.
    `on_answer` and `idempotency_key`: see `PostOptions`.
    """

    principal: Principal
    route: Route
    endpoint: str
    request_id: str
    end_user: str = ""
    batch: bool = False
    targets: Sequence[Route] = ()
    on_answer: Callable[[Route], None] | None = None
    estimate_input: Callable[[], int] = int
    idempotency_key: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    reservations: list[CallReservation] = field(default_factory=list)
    began: datetime = field(default_factory=now)
    id: str = field(default_factory=lambda: new_id("call"))
    # The ids of the rows from which this call and its further requests are recorded if this process dies.
    _open_ids: list[str] = field(default_factory=list, init=False)
    _object_id: str = field(default="", init=False)
    _most: Callable[[], Maxima] = field(default=Maxima, init=False)
    _service_tier: str | None = field(default=None, init=False)

    @property
    def may_repeat(self) -> bool:
        """True if a request may be repeated after an attempt that the upstream may charge.

        False if budgets apply, because the reservation covers only one attempt.
        """
        return not any(reservation.amount[1] for reservation in self.reservations)

    @property
    def may_be_charged(self) -> bool:
        """True if the upstream has received the last request and has not answered it with an error."""
        return bool(self.attempts) and self.attempts[-1].may_be_charged

    @property
    def answering(self) -> Route:
        """The target of the last request."""
        return self.route_of(self.attempts[-1]) if self.attempts else self.route

    def route_of(self, attempt: Attempt) -> Route:
        """Return the target of a request."""
        if attempt.target is None:
            return self.route
        return route_of(attempt, self.targets)

    def post(self, path: str, body: dict[str, Any] | Form) -> AbstractAsyncContextManager[Answer]:
        """Send the request to the upstream, as `providers.clients.post` does."""
        return self._post(self.route, path, body, PostOptions(may_repeat=self.may_repeat))

    @asynccontextmanager
    async def answered(
        self,
        path: str,
        body: dict[str, Any] | Form,
        begin: Callable[[Answer], Awaitable[Begun]],
        *,
        begins_soon: bool = False,
    ) -> AsyncIterator[Begun]:
        """Send the request, and provide what `begin` returns for the answer. Raises `UpstreamFailed`.

        With several targets, the next one is tried until one has answered (see `ForwardedCall`).
        """
        if not self.targets:
            async with self.post(path, body) as answer:
                yield await begin(answer)
            return

        def send(target: Route, options: PostOptions) -> AbstractAsyncContextManager[Answer]:
            sent = _for_model(body, target.upstream_model)
            return self._post(target, path, sent, options)

        call = ForwardedCall(
            route=self.route,
            send=send,
            attempts=self.attempts,
            reserve_again=self.reserve_again,
            may_repeat=self.may_repeat,
            begins_soon=begins_soon,
        )
        async with call.answered(begin) as begun:
            yield begun

    def named(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the public name of the model if there are several targets, whose names may differ."""
        return {**document, "model": self.answering.model} if self.targets and "model" in document else document

    def post_to(
        self, target: Route, path: str, body: dict[str, Any], *, patience: float, has_others: bool
    ) -> AbstractAsyncContextManager[Answer]:
        """Send the request to one of the targets. For the options, see `PostOptions`."""
        options = options_for(target, may_repeat=self.may_repeat, patience=patience, has_others=has_others)
        return self._post(target, path, body, options)

    def _post(
        self, target: Route, path: str, body: dict[str, Any] | Form, options: PostOptions
    ) -> AbstractAsyncContextManager[Answer]:
        options = replace(
            options, on_answer=self.on_answer, counted=self.estimate_input, idempotency_key=self.idempotency_key
        )
        return post(target, path, body, attempts=self.attempts, options=options)

    def unreported(self, *, output_tokens: int = 0) -> Usage:
        """Return the usage of a call without reported usage: an estimate, or no usage if the call was refused."""
        if not self.may_be_charged:
            return Usage()
        return Usage(input_tokens=self.estimate_input(), output_tokens=output_tokens, estimated=True)

    def input_usage(self, reported: object) -> Usage:
        """Return the reported usage, or an estimate, of a call without output tokens, such as embeddings."""
        usage = reported_usage(reported)
        # Every input has at least one token, so 0 means that the upstream does not count tokens.
        return usage if usage is not None and usage.input_tokens else self.unreported()

    async def reserve(
        self,
        most: Callable[[], Maxima],
        tokens: ExpectedTokens,
        *,
        service_tier: str | None = None,
        is_request: bool = True,
        is_stream: bool = False,
    ) -> int | None:
        """Reserve the limits that the call needs. Return the maximum of output tokens that they allow, or None.

        `most` returns the largest quantities for which the call can be billed at any target. `service_tier` is the
        requested tier. Without `is_request`, the call belongs to a run, which already has a place. Raises the error of
        a limit that refuses the call.
        """
        principal = self.principal if is_request else await directory.awith_limits(self.principal)
        if not is_limited(principal):
            return None
        self._most, self._service_tier = cache(most), service_tier
        reservation = CallReservation(principal, reservation_id=new_id("call"))
        grant = await reservation.reserve(
            Demand(
                requests=int(is_request),
                input_tokens=tokens.input,
                least_input_tokens=tokens.input // LEAST_SHARE,
                max_output_tokens=tokens.max_output,
                least_output_tokens=tokens.least_output,
                cost=self._worst_cost,
                run=is_request,
                stream=is_stream,
                end_user=end_user_of(self.end_user),
                endpoint=self.endpoint,
            )
        )
        self.reservations.append(reservation)
        return grant.max_output_tokens if grant is not None else None

    def _worst_cost(self, _: int, output_tokens: int, *, sent: str = "") -> Decimal | UnknownPrice:
        # This function is called only if a hard budget applies.
        maxima = cost_bounds.with_text(self._most(), sent)
        if maxima.output_tokens is None:
            maxima = replace(maxima, output_tokens=output_tokens)
        prices = [(route.model, route.prices) for route in self.targets or (self.route,)]
        return cost_bounds.worst_cost(prices, maxima, possible_tiers(self._service_tier))

    async def reserve_again(self, sent: str = "") -> bool:
        """Reserve another request after one that the upstream may charge. Return false if the limits have no room.

        The other request contains the text that was sent, for its continuation.
        """
        if self.may_repeat:
            return True
        further: list[CallReservation] = []
        for reservation in self.reservations:
            if (reserved := await reservation.reserve_again(cost=partial(self._worst_cost, sent=sent))) is None:
                return False
            further.append(reserved)
        # If this process dies, each request is recorded from a row of its own.
        await self._open(f"{self.id}/{len(self._open_ids) + 1}", further)
        return True

    async def open(self, object_id: str) -> None:
        """Store the row from which the call is recorded if this process dies during the call.

        Nothing may be sent to the upstream before the row is stored. After the call, `write` must be called.
        """
        self._object_id = object_id
        try:
            await self._open(self.id, self.reservations)
        except asyncio.CancelledError:
            # The row may have been stored nevertheless. It is deleted, because no request will be sent.
            extra = [write for reservation in self.reservations for write in reservation.settlement(())]
            extra.append(open_calls.close(self.id))
            await submit_new(Change(team_id=self.principal.team_id, extra=extra))
            for reservation in self.reservations:
                reservation.settle()
            raise

    async def _open(self, name: str, reservations: Sequence[CallReservation]) -> None:
        estimate = self._record(
            self.route,
            Usage(input_tokens=self.estimate_input(), estimated=True),
            object_id=self._object_id,
            outcome="interrupted",
            times=(self.began, self.began),
            upstream_request_id="",
        )
        reserved = dict(reservation.amount for reservation in reservations)
        row = open_calls.open_row(name, estimate, reserved=reserved)
        self._open_ids.append(name)
        await submit_new(Change(team_id=self.principal.team_id, insert=[row]))
        open_calls.of_loop().add(name, row.values["lease_until"])

    @asynccontextmanager
    async def recorded(self, spent: Callable[[str], Spent], *, success: str = "stop") -> AsyncIterator[None]:
        """Write the usage record when the block ends. `spent` returns the object and the usage for an outcome."""
        await self.open(spent("failed")[0])
        outcome = "failed"
        try:
            yield
            outcome = success
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "interrupted"
            raise
        finally:
            object_id, usage = spent(outcome)
            # A failed or interrupted call is recorded, too, as it may have used tokens. Shielded, because a call must
            # be recorded even if its request is cancelled.
            await asyncio.shield(self.write(object_id=object_id, outcome=outcome, usage=usage))

    async def write(
        self,
        *,
        object_id: str,
        outcome: str,
        usage: Usage,
        rows: Sequence[Row] = (),
        failed_targets: Sequence[Mapping[str, Any]] | None = None,
        keeps_content: bool = False,
    ) -> None:
        """Write the usage records of a call, even if it failed. `rows` are inserted in the same transaction.

        Without `keeps_content`, the text with which the upstream has refused the call is not stored: it may quote it.
        """
        ended = now()
        if self.attempts and not usage.estimated:
            self.attempts[-1].settle(usage)
        lost = [
            self._record(
                self.route_of(attempt),
                attempt.usage or estimated_usage(attempt, input_tokens=self.estimate_input),
                object_id=object_id,
                outcome="failed",
                times=(attempt.began, attempt.ended or ended),
                upstream_request_id=attempt.request_id,
            )
            for attempt in self.attempts[:-1]
            if attempt.was_sent
        ]
        record = self._record(
            self.answering,
            usage,
            object_id=object_id,
            outcome=outcome,
            times=(self.began, ended),
            upstream_request_id=self.attempts[-1].request_id if self.attempts else "",
        )
        if failed_targets:
            record.values["failed_targets"] = failed_targets
        failure = self.attempts[-1].failure if self.attempts and outcome == "failed" else None
        if failure is not None:
            record.values["failure"] = {
                name: value for name, value in failure.items() if keeps_content or name != "body"
            }
        records = [*lost, record]
        is_estimated = any(row.values["estimated"] for row in records)
        if is_estimated and not await directory.bills_estimates.aget(self.principal.team_id):
            for row in records:
                waive(row)
        for name in self._open_ids:
            open_calls.of_loop().discard(name)
        try:
            await submit_new(self._end(records, rows, call=CallGuard(call_id=self.id)))
        except LeaseLost:
            # Another process considered this process dead and has already recorded an estimate.
            records = []
            await submit_new(self._end(records, rows))
        count_usage(records)
        for reservation in self.reservations:
            reservation.settle()

    def _end(self, records: Sequence[Row], rows: Sequence[Row], *, call: CallGuard | None = None) -> Change:
        """Return the change that ends the call with these usage records."""
        extra = [
            write
            for reservation in self.reservations
            for write in reservation.settlement(records, may_be_charged=self.may_be_charged)
        ]
        extra += map(open_calls.close, self._open_ids)
        return Change(team_id=self.principal.team_id, insert=[*records, *rows], extra=extra, call=call)

    def _record(
        self,
        route: Route,
        usage: Usage,
        *,
        object_id: str,
        outcome: str,
        times: tuple[datetime, datetime],
        upstream_request_id: str,
    ) -> Row:
        began, ended = times
        return new_row(
            UsageRecord,
            team_id=self.principal.team_id,
            api_key_id=self.principal.key_id,
            occurred_at=ended,
            endpoint=self.endpoint,
            end_user=end_user_of(self.end_user),
            batch=self.batch,
            object_id=object_id[:64],
            model=route.model,
            upstream_id=route.upstream.id,
            upstream_model=route.upstream_model,
            outcome=outcome,
            duration_ms=max(0, round((ended - began).total_seconds() * 1000)),
            request_id=self.request_id,
            upstream_request_id=upstream_request_id[:200],
            **usage_columns(usage, route.prices, at=began),
        )
