"""Reservation, settlement and release: calls of the script, rebuilds of its state, and the behaviour without Redis."""

import asyncio
import logging
import time
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import redis
from django.conf import settings

from core.clock import shared_now
from core.db.db_threads import in_db_thread
from core.errors import LimitsUnavailable, Overloaded, retry_headers
from core.ids import new_id
from core.telemetry import metrics
from core.work.redis_client import loop_client
from limits import rejections, script
from limits.plan import (
    Plan,
    Refusal,
    limits_of,
    make_plan,
    read_status,
    renewal,
    settlement,
    status_plan,
)
from limits.rebuild import read_state
from limits.values import Demand, Grant, LimitStatus
from tenants import directory
from tenants.principal import Principal, SubjectLimits

logger = logging.getLogger(__name__)
# A rebuild takes milliseconds, or seconds if it has to add up much spending.
_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_LOCK_MS = 5000
# If a rebuild takes longer than this, the process that announced it may have died.
_WAIT_SECONDS = 1.0
_RETRY_SECONDS = 2.0
_ERRORS = metrics.REDIS_ERRORS.labels("limits")


async def reserve(principal: Principal, demand: Demand, *, reservation_id: str) -> Grant:
    """Check all limits and reserve the demand.

    If the grant's `needs_row` is true, its row must be stored before the work starts. Raises `RateLimited`,
    `InsufficientQuota`, `RequestTooLargeForLimit` or `PriceUnknown`, and `LimitsUnavailable` without Redis.
    """
    own = await _own(principal, demand.end_user)
    plan = _checked(principal, demand, make_plan(principal, demand, own, reservation_id=reservation_id))
    return await _reserve(plan, after=-1)


async def renew(grant: Grant, principal: Principal, demand: Demand) -> Grant:
    """Repeat a reservation that could not be stored because the state was rebuilt. Rates are not charged again.

    Raises the same errors as `reserve`. After an error nothing is reserved.
    """
    own = await _own(principal, demand.end_user)
    plan = _checked(principal, demand, make_plan(principal, demand, own, reservation_id=grant.id))
    return _renewed(grant, await _reserve(renewal(plan), after=grant.epoch))


def reserve_sync(principal: Principal, demand: Demand, *, reservation_id: str) -> Grant:
    """Like `reserve`, for code without an event loop."""
    own = _own_sync(principal, demand.end_user)
    plan = _checked(principal, demand, make_plan(principal, demand, own, reservation_id=reservation_id))
    return _reserve_sync(plan, after=-1)


async def settle(
    grant: Grant, *, tokens: int, cost: Decimal | None, at: datetime | None = None, keep: bool = False
) -> None:
    """Replace the reserved tokens and amount by the actual ones. Never fails: a lost settlement is repaired later.

    Call it after the transaction that stores the usage record. That transaction also deletes the reservation's row, or
    sets its amount to zero if the run continues (`keep`). `at` is the time of the usage record.
    """
    if not _is_needed(grant):
        return
    keys, document = _settlement(grant, tokens=tokens, cost=cost, keep=keep, at=at)
    try:
        await script.arun(grant.team_id, keys, document)
    except (redis.RedisError, OSError) as error:
        _note_unsettled(grant, error)


def settle_soon(
    grant: Grant, *, tokens: int, cost: Decimal | None, at: datetime | None = None, keep: bool = False
) -> None:
    """Like `settle`, but without waiting for the reply. It is sent with the next iteration of the event loop."""
    if _is_needed(grant):
        keys, document = _settlement(grant, tokens=tokens, cost=cost, keep=keep, at=at)
        script.send(grant.team_id, keys, document)


def settle_sync(grant: Grant, *, tokens: int, cost: Decimal | None, at: datetime | None = None) -> None:
    """Like `settle`, for code without an event loop."""
    if not _is_needed(grant):
        return
    keys, document = _settlement(grant, tokens=tokens, cost=cost, keep=False, at=at)
    try:
        script.run(grant.team_id, keys, document)
    except (redis.RedisError, OSError) as error:
        _note_unsettled(grant, error)


async def release(grant: Grant) -> None:
    """Release a reservation whose work was not done, or whose completed part is already settled.

    If its row was stored, the row must be deleted first. The request still counts in the rate limits.
    """
    await settle(grant, tokens=0, cost=None)


def release_soon(grant: Grant) -> None:
    """Like `release`, but without waiting for the reply."""
    settle_soon(grant, tokens=0, cost=None)


async def status(principal: Principal, end_user: str = "") -> LimitStatus:
    """Return the use of all limits and hard budgets of a principal. Raises `LimitsUnavailable` without Redis."""
    plan = status_plan(principal, end_user, await _own(principal, end_user))
    if plan.is_empty:
        return LimitStatus()
    try:
        return read_status(plan, await _run(plan, "status", after=-1))
    except (redis.RedisError, OSError) as error:
        raise _unavailable(error) from error


def status_sync(principal: Principal, end_user: str = "") -> LimitStatus:
    """Like `status`, for code without an event loop."""
    plan = status_plan(principal, end_user, _own_sync(principal, end_user))
    if plan.is_empty:
        return LimitStatus()
    try:
        return read_status(plan, _run_sync(plan, "status", after=-1))
    except (redis.RedisError, OSError) as error:
        raise _unavailable(error) from error


async def applying(principal: Principal, end_user: str = "") -> list[SubjectLimits]:
    """Return the limits that apply to a request, for limits such as `files`, which the script does not check."""
    return limits_of(principal, end_user, await _own(principal, end_user))


def applying_sync(principal: Principal, end_user: str = "") -> list[SubjectLimits]:
    """Like `applying`, for code without an event loop."""
    return limits_of(principal, end_user, _own_sync(principal, end_user))


async def rebuild(team_id: str) -> None:
    """Load the state of a team from PostgreSQL. Raises `redis.RedisError`."""
    token, lock = new_id("rebuild"), script.state_keys(team_id)[2]
    # Set before the rows are read: from now on, the script records settlements, which it applies to the loaded state.
    await loop_client().set(lock, token, px=_LOCK_MS)
    document = await in_db_thread(lambda: read_state(team_id))
    await script.arun(team_id, (), {**document, "token": token})


def rebuild_sync(team_id: str) -> None:
    """Like `rebuild`, for code without an event loop."""
    token, lock = new_id("rebuild"), script.state_keys(team_id)[2]
    script.client().set(lock, token, px=_LOCK_MS)
    script.run(team_id, (), {**read_state(team_id), "token": token})


async def _reserve(plan: Plan, *, after: int) -> Grant:
    if plan.is_empty:
        return _unlimited(plan)
    try:
        reply = await _run(plan, "reserve", after=after)
    except (redis.RedisError, OSError) as error:
        return _without_redis(plan, error)
    return _granted(plan, reply)


def _reserve_sync(plan: Plan, *, after: int) -> Grant:
    if plan.is_empty:
        return _unlimited(plan)
    try:
        reply = _run_sync(plan, "reserve", after=after)
    except (redis.RedisError, OSError) as error:
        return _without_redis(plan, error)
    return _granted(plan, reply)


async def _run(plan: Plan, op: str, *, after: int) -> script.Reply:
    """Run the script, after rebuilding the state if it is missing or its epoch is no later than `after`."""
    team_id, keys, document = plan.principal.team_id, plan.keys, plan.document(op, after=after)
    waits_until, deadline = time.monotonic() + _WAIT_SECONDS, time.monotonic() + _PATIENCE_SECONDS
    reply = await script.arun(team_id, keys, document)
    while reply[0] == "stale":
        lock = script.state_keys(team_id)[2]
        if time.monotonic() > deadline:
            raise redis.TimeoutError("the state of the limits could not be rebuilt in time")
        # One process rebuilds while the others wait. This only saves work: epochs keep concurrent rebuilds correct.
        has_lock = await loop_client().set(lock, "", nx=time.monotonic() < waits_until, px=_LOCK_MS)
        if not has_lock:
            await asyncio.sleep(_POLL_SECONDS)
        reply = await script.arun(team_id, keys, document)
        if has_lock and reply[0] == "stale":
            await rebuild(team_id)
            reply = await script.arun(team_id, keys, document)
        elif has_lock:
            # Another process has just rebuilt the state.
            await loop_client().delete(lock)
    return reply


def _run_sync(plan: Plan, op: str, *, after: int) -> script.Reply:
    team_id, keys, document = plan.principal.team_id, plan.keys, plan.document(op, after=after)
    waits_until, deadline = time.monotonic() + _WAIT_SECONDS, time.monotonic() + _PATIENCE_SECONDS
    reply = script.run(team_id, keys, document)
    while reply[0] == "stale":
        lock = script.state_keys(team_id)[2]
        if time.monotonic() > deadline:
            raise redis.TimeoutError("the state of the limits could not be rebuilt in time")
        has_lock = script.client().set(lock, "", nx=time.monotonic() < waits_until, px=_LOCK_MS)
        if not has_lock:
            time.sleep(_POLL_SECONDS)
        reply = script.run(team_id, keys, document)
        if has_lock and reply[0] == "stale":
            rebuild_sync(team_id)
            reply = script.run(team_id, keys, document)
        elif has_lock:
            script.client().delete(lock)
    return reply


async def _own(principal: Principal, end_user: str) -> SubjectLimits | None:
    if not (end_user and principal.limits_some_end_users):
        return None
    return await directory.end_user_limits.aget(principal.team_id, end_user)


def _own_sync(principal: Principal, end_user: str) -> SubjectLimits | None:
    if not (end_user and principal.limits_some_end_users):
        return None
    return directory.end_user_limits(principal.team_id, end_user)


def _checked(principal: Principal, demand: Demand, plan: Plan | Refusal) -> Plan:
    if isinstance(plan, Refusal):
        rejections.count(principal, demand, plan)
        raise plan.error
    return plan


def _granted(plan: Plan, reply: script.Reply) -> Grant:
    if reply[0] == "ok":
        return plan.grant(reply)
    refusal = plan.refusal(reply)
    rejections.count(plan.principal, plan.demand, refusal)
    raise refusal.error


def _renewed(grant: Grant, renewed: Grant) -> Grant:
    lowest = [maximum for maximum in (grant.max_output_tokens, renewed.max_output_tokens) if maximum is not None]
    return replace(
        renewed,
        rates=grant.rates,
        headers=grant.headers,
        tokens=grant.tokens,
        max_output_tokens=min(lowest, default=None),
    )


def _unlimited(plan: Plan) -> Grant:
    demand = plan.demand
    return Grant(
        id=plan.id,
        team_id=plan.principal.team_id,
        key_id=plan.principal.key_id,
        end_user=demand.end_user,
        max_output_tokens=plan.most_output,
        run=demand.run,
        stream=demand.stream,
        queued=demand.queued,
    )


def _without_redis(plan: Plan, error: Exception) -> Grant:
    if settings.LIMITS_FAIL != "open":
        raise _unavailable(error) from error
    _ERRORS.inc()
    logger.warning("limits are not checked: %s", error)
    return replace(_unlimited(plan), is_open=True)


def _unavailable(error: Exception) -> Overloaded:
    _ERRORS.inc()
    logger.warning("limits cannot be checked: %s", error)
    return LimitsUnavailable(headers=retry_headers(_RETRY_SECONDS))


def _note_unsettled(grant: Grant, error: Exception) -> None:
    _ERRORS.inc()
    logger.warning("a reservation could not be settled: %s", error, extra={"reservation": grant.id})


def _is_needed(grant: Grant) -> bool:
    return grant.needs_row or grant.is_open or bool(grant.rates)


def _settlement(
    grant: Grant, *, tokens: int, cost: Decimal | None, keep: bool, at: datetime | None
) -> tuple[list[str], dict[str, object]]:
    if grant.is_open:
        # The cost was not reserved, so only PostgreSQL has it.
        return [], {"op": "forget"}
    return settlement(grant, tokens=tokens, cost=cost, keep=keep, at=grant.occurred(at or shared_now()))
