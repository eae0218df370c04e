"""Reservations of limits by runs and upstream calls.

A reservation is made in Redis before anything is sent, and stored together with its run or call (`Change.reservation`).
The transaction that stores the usage deletes the row, and afterwards the reservation is settled in Redis. So budgets
are kept even if a process dies or Redis loses its data, because unsettled reservations are still in the database.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from django.conf import settings

import limits
from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.db.statement_pipeline import Statement
from core.errors import ApiError, LimitReached, LimitsUnavailable, RateLimited
from core.http import response_headers
from core.process_name import process_name
from core.work.leases import lease_until
from engine.calls.outcomes import Execute, Refuse
from engine.compaction import token_estimate
from engine.turn import Call, FunctionTool, TurnRequest
from limits import Cost, Demand, Grant
from responses.runs import cost_bounds
from responses.runs.identity import RunIdentity
from responses.runs.rows import Row, new_row
from responses.runs.store import GUARDED, Change, ExtraWrite, ReservationGuard, ReservationLost, submit_new, writer
from tenants import scope
from tenants.capabilities import Capabilities
from tenants.models import Reservation, UsageRecord
from tenants.prices import Maxima, PriceList, Unbounded, possible_tiers
from tenants.principal import Principal

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
# An attempt fails if another process has rebuilt the state of the team's limits between a reservation and its commit.
_ATTEMPTS = 10
# Factor between the estimated and the least number of tokens of a text: a text has four characters per token on
# average, but hardly ever more than sixteen.
LEAST_SHARE = 4
# Outcomes of calls whose usage may be unknown.
_CUT = frozenset({"interrupted", "failed"})
# Maximum time between two checks if the limits have room for the next call of a run.
_LONGEST_PAUSE = 5.0
# After this time, a waiting client gets the error that there is no room, because the reservations of a dead process may
# last longer than most clients wait.
_LONGEST_WAIT = 60.0
_PATIENCE = 30
OPEN_STREAM = Demand(requests=0, stream=True, endpoint="responses")
"""The demand of a stream that is not a run: a WebSocket connection, or a stream that only reads a run."""


def _statement(change: str) -> Statement:
    """Return a statement that changes the reservations whose ids are in the rows of its JSON document."""
    return Statement(f"""
        WITH old AS (SELECT id FROM json_to_recordset($1::json) AS given (id text, guard text) WHERE {GUARDED})
        {change} WHERE id = ANY (ARRAY(SELECT id FROM old))
    """)  # noqa: S608 - constants only


_DELETE = _statement("DELETE FROM tenants_reservation")
_KEEP_PLACE = _statement("UPDATE tenants_reservation SET amount = 0, tokens = 0")
_settling: set[asyncio.Task[None]] = set()


def with_reservation(change: Change, grant: Grant | None, **columns: Any) -> Change:
    """Return the change with the row of a reservation. The change is written only if the reservation still exists."""
    if grant is None or not grant.needs_row:
        return change
    row = new_row(Reservation, **grant.row(), **columns)
    guard = ReservationGuard(reservation_id=grant.id, team_id=grant.team_id, epoch=grant.epoch)
    return replace(change, insert=[*change.insert, row], reservation=guard)


def deletions(*grants: Grant | None) -> list[ExtraWrite]:
    """Return the writes that delete the rows of reservations."""
    return [ExtraWrite(_DELETE, {"id": grant.id}) for grant in grants if grant is not None and grant.needs_row]


def in_background(work: Coroutine[Any, Any, None]) -> None:
    """Release a reservation without waiting for it. If this fails, the sweeper deletes the reservation later."""

    async def settled() -> None:
        try:
            await work
        except Exception:
            logger.warning("a reservation was not settled", exc_info=True)

    task = asyncio.create_task(settled())
    _settling.add(task)
    task.add_done_callback(_settling.discard)


class _Leases:
    """Renews the leases of this process's reservations without a response, until their calls have ended."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, reservation_id: str) -> None:
        self._ids.add(reservation_id)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._renew(), context=wait_limit.unrelated())

    def discard(self, reservation_id: str) -> None:
        self._ids.discard(reservation_id)

    async def _renew(self) -> None:
        while self._ids:
            await asyncio.sleep(settings.LEASE_SECONDS / 3)
            ids = [*self._ids]
            try:
                await in_db_thread(partial(_renew, ids))
            except Exception:
                logger.exception("leases of reservations could not be renewed")


def _renew(ids: Sequence[str]) -> None:
    with scope.every_team():
        Reservation.objects.filter(pk__in=ids).update(lease_until=lease_until())


_leases = _Leases()


async def _when_possible(reserve: Callable[[], Awaitable[_T]], *, waits: bool = True, longest: float | None) -> _T:
    """Make a reservation as soon as rate limits and other requests leave room for it.

    Waits at most `longest` seconds. Raises the error of the limit then, and at once if waiting does not help or it
    does not wait.
    """
    patience, began = _PATIENCE, time.monotonic()
    while True:
        try:
            return await reserve()
        except RateLimited as error:
            is_late = longest is not None and time.monotonic() - began > longest
            if error.is_final or not waits or is_late:
                raise
            pause = float(error.headers.get("retry-after-ms", 1000)) / 1000
        except LimitsUnavailable:
            patience -= 1
            if not patience:
                raise
            pause = 1.0
        await asyncio.sleep(min(pause, _LONGEST_PAUSE))


class CallReservation:
    """The reservation of an upstream call that is not a turn of a run: its tokens, cost and place."""

    def __init__(self, principal: Principal, *, reservation_id: str) -> None:
        self._principal = principal
        self._id = reservation_id
        self._demand = Demand()
        self.grant: Grant | None = None
        """The grant; None without limits, and after the settlement."""
        # Those of the call's further requests.
        self._further: list[CallReservation] = []

    async def reserve(self, demand: Demand) -> Grant | None:
        """Make, store and return the reservation; None without limits. Raises the error of a limit that refuses it."""
        self._demand = demand
        if not self._principal.is_limited:
            return None
        grant = await limits.reserve(self._principal, demand, reservation_id=self._id)
        response_headers.add(grant.headers)
        for _ in range(_ATTEMPTS):
            lease = {"lease_owner": process_name(), "lease_until": lease_until()}
            try:
                if grant.needs_row:
                    await writer.submit(with_reservation(Change(team_id=grant.team_id), grant, **lease))
            except ReservationLost:
                grant = await limits.renew(grant, self._principal, demand)
                continue
            except BaseException:
                # The row may have been stored nevertheless. The sweeper deletes it, because its lease is not renewed.
                limits.release_soon(grant)
                raise
            self.grant = grant
            if grant.needs_row:
                _leases.add(grant.id)
            return grant
        raise LimitsUnavailable

    async def reserve_again(self, *, cost: Cost) -> "CallReservation | None":
        """Reserve and return another request with this maximum cost, because the upstream may charge for the first one.

        It is settled together with this reservation. Waits a limited time for room. Returns None if there is none.
        """
        further = CallReservation(self._principal, reservation_id=f"{self._id}/{len(self._further) + 2}")
        demand = of_further_request(self._demand, self.grant, cost)
        try:
            await _when_possible(partial(further.reserve, demand), longest=settings.UPSTREAM_RETRY_SECONDS)
        except ApiError:
            return None
        self._further.append(further)
        return further

    @property
    def amount(self) -> tuple[str, Decimal]:
        """The id of the reservation, and the amount of the budgets that it has reserved, in US dollars."""
        return self._id, self.grant.amount if self.grant is not None else Decimal(0)

    def release(self) -> None:
        """Release the whole reservation, without waiting for it."""
        if self.grant is not None:
            in_background(self._release())

    async def _release(self) -> None:
        if writes := self.settlement(()):
            await writer.submit(Change(team_id=self._principal.team_id, extra=writes))
        self.settle()

    def settlement(self, rows: Sequence[Row], *, may_be_charged: bool = False) -> Sequence[ExtraWrite]:
        """Return the writes to add to the change with the call's usage records. Call `settle` after its commit.

        `may_be_charged`: the upstream may charge for the call, even if it has reported no usage.
        """
        if may_be_charged or self._further:
            _charge_unknown(rows, [reservation.grant for reservation in (self, *self._further)])
        # The first reservation gets the whole cost.
        others = [write for further in self._further for write in further.settlement(())]
        tokens, cost, at = spent(rows, self.grant)
        self._settled = (tokens, cost, at)
        if self.grant is not None:
            # The lease is given up before the commit: if the commit fails, the lease expires and the sweeper deletes
            # the row.
            _leases.discard(self.grant.id)
        return [*deletions(self.grant), *others]

    def settle(self) -> None:
        """Release the unused part of the reservation, without waiting for it."""
        for further in self._further:
            further.settle()
        if self.grant is not None:
            grant, self.grant = self.grant, None
            tokens, cost, at = self._settled
            limits.settle_soon(grant, tokens=tokens, cost=cost, at=at)


def spent(rows: Sequence[Row], grant: Grant | None) -> tuple[int, Decimal | None, datetime | None]:
    """Return the tokens, cost and time of the usage records among these rows.

    If the time of Redis is later, the records are given this time, because the clock of Redis decides about the periods
    of budgets.
    """
    tokens, cost, at = 0, None, None
    for table, values in rows:
        if grant is not None and table is UsageRecord:
            tokens += values["input_tokens"] + values["output_tokens"]
            counted = values["cost"] if values.get("budget_cost") is None else values["budget_cost"]
            cost = counted if cost is None else cost + (counted or 0)
            at = values["occurred_at"] = grant.occurred(values["occurred_at"])
    return tokens, cost, at


def of_further_request(demand: Demand, first: Grant | None, cost: Cost) -> Demand:
    """Return the demand of another request of a call. It needs as much output as the first one was granted."""
    most = demand.max_output_tokens if first is None else first.max_output_tokens or demand.max_output_tokens
    least = demand.least_output_tokens if most is None else most
    demand = replace(demand, requests=0, run=False, stream=False, cost=cost)
    return replace(demand, max_output_tokens=most, least_output_tokens=least)


def _charge_unknown(rows: Sequence[Row], grants: Sequence[Grant | None]) -> None:
    """Charge the full reservations of a call's interrupted requests to the budgets.

    The upstream may have generated more output than was received. With a lower amount, a hard budget could be exceeded.
    """
    unknown = [
        values for table, values in rows if table is UsageRecord and values["estimated"] and values["outcome"] in _CUT
    ]
    # Each request after the first that may be charged has a reservation of its own.
    for values, grant in zip(reversed(unknown), reversed(grants), strict=False):
        if grant is not None and grant.amount > (values["cost"] or 0):
            values["budget_cost"] = grant.amount


_TOOL = "tool"


def _digest(call_id: str) -> str:
    # Hashed, because upstreams choose the ids of calls, and an id may be long.
    return hashlib.sha256(call_id.encode()).hexdigest()[:16]


def is_of_tool(reservation_id: str) -> bool:
    """Return true if a reservation is for a hosted call."""
    return reservation_id.split("/")[2:3] == [_TOOL]


def price_key_of(reservation_id: str) -> str:
    """Return the price key of the hosted call for which a reservation was made."""
    return reservation_id.split("/")[3]


def is_for(reservation_id: str, call_id: str) -> bool:
    """Return true if a reservation is for this hosted call."""
    return is_of_tool(reservation_id) and reservation_id.split("/")[4] == _digest(call_id)


class RunReservation:
    """The reservations of one run: its place, the tokens and the cost of its present call, and its hosted calls.

    The first call is reserved together with the place, and each later call before it is sent. The ids contain the lease
    token, because a process that resumes the run makes its own reservations. A call is reserved with the prices of the
    most expensive target, and `capabilities` must cover all targets (`cost_bounds.widest`).
    """

    def __init__(self, principal: Principal, identity: RunIdentity, capabilities: Capabilities) -> None:
        self._principal = principal
        self._identity = identity
        self._id = f"{identity.response_id}/{identity.lease_token}"
        self._capabilities = capabilities
        self._demand = Demand()
        self._place: Grant | None = None
        self._is_stored = False
        # The reservation of the present call, and its demand. The first call uses the reservation of the place.
        self._call: Grant | None = None
        self._call_demand = self._demand
        # The reservations of further requests of the present call.
        self._further: list[Grant] = []
        # The largest quantities for which the present call can be billed.
        self._most = Maxima()
        # The reservations of hosted calls by call id. They exist from before the start of a call until its usage is
        # recorded.
        self._tools: dict[str, Grant] = {}
        # The maximum number of input tokens that the reservation of the first call covers.
        self._covered: int | Unbounded = 0
        self._texts: tuple[Sequence[FunctionTool], str | None] = ((), None)
        self._calls = 0

    # -- before the run ------------------------------------------------------------------------------------------------

    async def reserve(self, request: TurnRequest | None, *, stream: bool = False) -> None:
        """Reserve the place and the first call of the run. Raises the error of the limit that refuses them.

        `request` is None if the run calls no model.
        """
        demand = Demand(end_user=self._identity.end_user, endpoint=self._identity.endpoint)
        if request is not None:
            demand, self._most = self._demand_of(request)
            self._call_demand, self._covered = demand, self._most.input_tokens
            self._texts = (request.sampling.tools, request.instructions)
        self._demand = replace(demand, requests=1, run=True, stream=stream)
        self._place = await limits.reserve(self._principal, self._demand, reservation_id=self._id)
        response_headers.add(self._place.headers)

    async def leave_queue(self) -> None:
        """Store the reserved place of a run that was queued, and release its place in the queue."""
        queue_place = Grant(
            id=self._identity.response_id,
            team_id=self._principal.team_id,
            key_id=self._principal.key_id,
            end_user=self._identity.end_user,
            queued=True,
            needs_row=True,
        )
        await self.store(Change(team_id=queue_place.team_id, extra=deletions(queue_place)))
        await limits.release(queue_place)

    async def reserve_queue_place(self) -> None:
        """Reserve a place in the queue for a run that a worker starts later."""
        identity = self._identity
        self._demand = Demand(requests=0, queued=True, end_user=identity.end_user, endpoint=identity.endpoint)
        self._place = await limits.reserve(self._principal, self._demand, reservation_id=identity.response_id)
        response_headers.add(self._place.headers)

    async def store(self, change: Change) -> None:
        """Commit the change that stores the run, together with its reservation."""
        try:
            for _ in range(_ATTEMPTS):
                try:
                    await submit_new(with_reservation(change, self._place, response_id=self._identity.response_id))
                except ReservationLost:
                    if self._place is not None:
                        self._place = await limits.renew(self._place, self._principal, self._demand)
                else:
                    self._is_stored = True
                    return
        except BaseException:
            self.release()
            raise
        self.release()
        raise LimitsUnavailable

    # -- calls ---------------------------------------------------------------------------------------------------------

    def first_turn(self, request: TurnRequest) -> TurnRequest | None:
        """Return the request of the first turn with the maximum of output that the limits allow.

        Return None if the turn was not reserved together with the place of the run, or needs more than was reserved.
        """
        place = self._place
        if self._calls or place is None:
            return None
        # The texts of files, which may not have been known when the place was reserved, can make the input larger.
        is_same = request.attachments is None and (request.sampling.tools, request.instructions) == self._texts
        if not is_same and place.amount and not self._covers(request):
            return None
        self._calls, self._call = 1, place
        return self._lowered(request, place)

    async def reserve_turn(self, request: TurnRequest) -> TurnRequest:
        """Reserve a turn, and return its request with the maximum of output that the limits allow.

        Waits while a rate limit or other requests leave no room; in a foreground run only for a limited time. Raises
        `InsufficientQuota` if a budget is used up.
        """
        self._calls += 1
        if self._calls == 1 and self._place is not None:
            # The definitions of hosted tools' functions, which were not known when the place was reserved, cost tokens.
            await writer.submit(Change(team_id=self._place.team_id, extra=_kept(self._place)))
            await self._settle_place()
        self._call_demand, self._most = self._demand_of(request)
        name = f"{self._id}/{self._calls}"
        self._call = await self._reserve(self._call_demand, reservation_id=name, longest=self._longest_wait)
        return self._lowered(request, self._call)

    async def _reserve_further_request(self, tiers: Collection[str] | None, sent: str) -> bool:
        """Reserve another request of the present call, which contains the text that was sent, for its continuation.

        Return false if the budgets or other limits have no room for it.
        """
        if (first := self._call) is None:
            return False
        cost = self._cost(cost_bounds.with_text(self._most, sent), tiers)
        demand = of_further_request(self._call_demand, first, cost)
        name = f"{self._id}/{self._calls}.{len(self._further) + 2}"
        try:
            grant = await self._reserve(demand, reservation_id=name, longest=settings.UPSTREAM_RETRY_SECONDS)
        except ApiError:
            return False
        self._further.append(grant)
        return True

    async def reserve_call(self, call: Call, price_key: str, *, waits: bool) -> Execute | Refuse | None:
        """Reserve the maximum cost of a hosted call. Return `Execute`, or `Refuse` if the call must not be made.

        Return None if the call must wait, because calls in progress have reserved the amount that it needs.
        """
        identity = self._identity
        lists = [*(prices for _, prices in self._prices), identity.tool_prices]
        listed = (prices.worst_cost_of_call(price_key) for prices in lists)
        cost = max((worst for worst in listed if worst is not None), default=Decimal(0))
        if not cost or not self._has_budget:
            return Execute()
        demand = Demand(
            requests=0,
            max_output_tokens=0,
            cost=lambda _, __: cost,
            end_user=identity.end_user,
            endpoint=identity.endpoint,
        )
        # The id contains the number of the turn, because some upstreams use the same call ids in each turn.
        name = f"{self._id}/{_TOOL}/{price_key}/{_digest(call.call_id)}/{self._calls}"
        try:
            grant = await self._reserve(demand, reservation_id=name, waits=waits, longest=self._longest_wait)
        except LimitReached as refused:
            is_refused = refused.is_final or waits
            return Refuse(f"error: the call was not made. {refused.message}") if is_refused else None
        if grant.needs_row:
            self._tools[call.call_id] = grant
        return Execute()

    def extend(self, grants: Mapping[str, Grant]) -> None:
        """Add reservations of hosted calls, by call id, that had returned when the previous process of the run died."""
        self._tools |= grants

    @property
    def _longest_wait(self) -> float | None:
        return None if self._identity.background else _LONGEST_WAIT

    async def _reserve(
        self, demand: Demand, *, reservation_id: str, waits: bool = True, longest: float | None
    ) -> Grant:
        async def attempt() -> Grant:
            grant = await limits.reserve(self._principal, demand, reservation_id=reservation_id)
            for _ in range(_ATTEMPTS):
                if not grant.needs_row:
                    return grant
                change = Change(team_id=grant.team_id)
                change = with_reservation(change, grant, response_id=self._identity.response_id)
                commit = writer.submit(change)
                try:
                    await commit
                except ReservationLost:
                    grant = await limits.renew(grant, self._principal, demand)
                except asyncio.CancelledError:
                    in_background(_release_after(commit, grant))
                    raise
                else:
                    return grant
            raise LimitsUnavailable

        return await _when_possible(attempt, waits=waits, longest=longest)

    async def _settle_place(self) -> None:
        if self._place is not None:
            await limits.settle(self._place, tokens=0, cost=None, keep=True)
            self._place = replace(self._place, amount=Decimal(0), tokens=0, rates=())

    def _covers(self, request: TurnRequest) -> bool:
        most = cost_bounds.of_turn(request, self._capabilities).input_tokens
        return isinstance(most, int) and isinstance(self._covered, int) and most <= self._covered

    def _lowered(self, request: TurnRequest, grant: Grant) -> TurnRequest:
        if grant.amount:
            # A repeated request may be charged again, but only one request is reserved.
            tiers = possible_tiers(request.sampling.service_tier)
            again = partial(self._reserve_further_request, tiers)
            request = replace(request, may_repeat=False, reserve_again=again)
        most, stated = grant.max_output_tokens, request.sampling.max_output_tokens
        if most is None or (stated is not None and stated <= most):
            return request
        return replace(request, sampling=replace(request.sampling, max_output_tokens=most))

    def _demand_of(self, request: TurnRequest) -> tuple[Demand, Maxima]:
        """Return the demand of a call, and the largest quantities for which it can be billed."""
        estimate = token_estimate.input_tokens(
            instructions=request.instructions,
            items=request.items,
            sampling=request.sampling,
            attachments=request.attachments,
        )
        # Only budgets need the upper bound.
        most = cost_bounds.of_turn(request, self._capabilities) if self._has_budget else cost_bounds.of_text(estimate)
        demand = Demand(
            requests=0,
            input_tokens=estimate,
            least_input_tokens=estimate // LEAST_SHARE,
            max_output_tokens=request.sampling.max_output_tokens,
            cost=self._cost(most, possible_tiers(request.sampling.service_tier)),
            end_user=self._identity.end_user,
            endpoint=self._identity.endpoint,
        )
        return demand, most

    def _cost(self, most: Maxima, tiers: Collection[str] | None) -> Cost:
        prices = self._prices
        return lambda _, output: cost_bounds.worst_cost(prices, replace(most, output_tokens=output), tiers)

    @property
    def _prices(self) -> Sequence[tuple[str, PriceList]]:
        """The price lists by which the next call may be charged, each with the name of its model."""
        identity = self._identity
        return [(target.model, prices) for target, prices in identity.targets] or [(identity.model, identity.prices)]

    @property
    def _has_budget(self) -> bool:
        return self._principal.limits_some_end_users or any(limit.hard_budgets for limit in self._principal.limits)

    # -- after a call --------------------------------------------------------------------------------------------------

    def settlement(
        self,
        rows: Sequence[Row],
        *,
        has_call: bool,
        has_ended: bool,
        may_be_charged: bool = True,
        tools: Mapping[str, Row | None] | None = None,
    ) -> "Settlement":
        """Return the settlement that belongs to a change with these rows.

        - `has_call`: the rows contain the usage records of the present call.
        - `may_be_charged`: the upstream may charge for the present call, even if it has reported no usage.
        - `has_ended`: the run has ended.
        - `tools`: the usage records of hosted calls that have ended, by call id; None for a call that cost nothing.
        """
        tools = tools or {}
        call, place = self._call if has_call or has_ended else None, self._place
        settled: list[_Settled] = []
        others: list[Row] = []
        for call_id, row in tools.items():
            if (grant := self._tools.get(call_id)) is not None:
                found = [row] if row is not None else []
                _charge_unknown(found, [grant])
                _, cost, at = spent(found, grant)
                settled.append(_Settled(grant, cost=cost, at=at))
            elif row is not None:
                others.append(row)
        if has_ended:
            # Other hosted calls are left only if the run was lost to another process, which records these calls.
            left = {call_id: grant for call_id, grant in self._tools.items() if call_id not in tools}
            settled += [_Settled(grant, cost=grant.amount) for grant in left.values()]
        writes = deletions(*(part.grant for part in settled))
        if call is not None:
            if has_call and (may_be_charged or self._further):
                _charge_unknown(rows, [call, *self._further])
            tokens, cost, at = spent([*rows, *others] if has_call else others, call)
            keeps = call is place and not has_ended
            writes += _kept(call) if keeps else deletions(call)
            settled.append(_Settled(call, tokens=tokens, cost=cost, at=at, keeps=keeps))
            # The reservation of the first request gets the whole cost.
            settled += [_Settled(grant) for grant in self._further]
            writes += deletions(*self._further)
        if place is not None and place is not call and (has_ended or (others and self._calls)):
            # Settle hosted calls without a reservation. The amount reserved with the place has already been settled.
            _, cost, at = spent(others if call is None else (), place)
            writes += deletions(place) if has_ended else []
            settled.append(_Settled(place, cost=cost, at=at, keeps=not has_ended))
        return Settlement(self, writes, settled, tools=[*tools], has_ended=has_ended)

    def settle(self, settlement: "Settlement") -> None:
        """Settle the committed change in Redis, without waiting for it."""
        # The state is updated immediately, because the run may begin its next call before the background task runs.
        for part in settlement.settled:
            if part.grant is self._call:
                self._call = None
            if part.grant in self._further:
                self._further.remove(part.grant)
            if part.grant is self._place:
                self._place = replace(part.grant, amount=Decimal(0), tokens=0, rates=()) if part.keeps else None
            limits.settle_soon(part.grant, tokens=part.tokens, cost=part.cost, at=part.at, keep=part.keeps)
        if settlement.has_ended:
            self._call = self._place = None
            self._tools.clear()
        for call_id in settlement.tools:
            self._tools.pop(call_id, None)

    def release(self) -> None:
        """Release the place of a run that was not stored or that this process does not continue, without waiting."""
        # If the usage of a call could not be recorded, the reservation is kept, and the sweeper records the call.
        if self._place is None or self._call is not None:
            return
        if self._is_stored:
            in_background(self._release())
        else:
            limits.release_soon(self._place)
            self._place = None

    async def _release(self) -> None:
        settlement = self.settlement((), has_call=False, has_ended=True)
        if settlement.writes:
            await writer.submit(Change(team_id=self._principal.team_id, extra=settlement.writes))
        self.settle(settlement)


async def _release_after(commit: "asyncio.Future[None]", grant: Grant) -> None:
    """Release a reservation whose call was cancelled while its row was being stored. The commit has ended."""
    if commit.exception() is None:
        await writer.submit(Change(team_id=grant.team_id, extra=deletions(grant)))
    await limits.release(grant)


@dataclass(frozen=True, slots=True)
class _Settled:
    """A reservation and the used part of it. `keeps`: the reservation remains as the place of the run."""

    grant: Grant
    _: KW_ONLY
    tokens: int = 0
    cost: Decimal | None = None
    at: datetime | None = None
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """The writes for ended calls or an ended run, and the reservations to settle after the commit of these writes."""

    reservation: RunReservation
    writes: Sequence[ExtraWrite]
    settled: Sequence[_Settled]
    _: KW_ONLY
    tools: Sequence[str] = ()
    has_ended: bool = False

    def settle(self) -> None:
        """Settle the reservations in Redis, without waiting for it."""
        self.reservation.settle(self)


def _kept(place: Grant) -> list[ExtraWrite]:
    return [ExtraWrite(_KEEP_PLACE, {"id": place.id})] if place.needs_row else []
