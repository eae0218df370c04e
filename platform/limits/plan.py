"""Arguments of the script for a request, and the meaning of its reply: pure functions without Redis or PostgreSQL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from math import ceil
from typing import Any, NamedTuple

from core.clock import shared_now
from core.errors import (
    ApiError,
    InsufficientQuota,
    LimitReached,
    PriceUnknown,
    RequestTooLargeForLimit,
    retry_headers,
)
from core.periods import bounds, microseconds
from limits.rebuild import UNITS, subjects
from limits.script import Reply
from limits.values import BudgetUse, Demand, Grant, LimitStatus, LimitUse, TakenRate, UnknownPrice
from tenants.models import Period
from tenants.principal import BudgetLimit, Principal, SubjectLimits

MINUTE, DAY = 60_000_000, 86_400_000
# A call without a stated maximum reserves this many tokens of a rate. Additional tokens are charged by its settlement.
UNSTATED_TOKENS = 4_096
# Under a hard budget, such a call may use at most this many tokens: the budget needs a maximum cost.
UNSTATED_MAXIMUM = 16_384
_REMEDY = (
    "Use a model with a price, or ask an operator to set its prices (`manage.py set_price`, or the page of the model "
    "in the console) or to allow unknown prices in the budget."
)
_PERIODS = tuple(Period.values)
_COUNTS = {"concurrent_runs": "runs", "queued_runs": "queued", "open_streams": "streams"}
_NAMES = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "requests_per_day": "requests per day",
    "concurrent_runs": "concurrent runs",
    "queued_runs": "queued runs",
    "open_streams": "open streams",
    "max_output_tokens": "output tokens",
}


class _Rate(NamedTuple):
    subject: SubjectLimits
    name: str
    limit: int
    cost: int

    @property
    def key(self) -> str:
        return f"{self.subject.kind}:{self.subject.id}:{self.name}"

    def document(self) -> dict[str, Any]:
        # A day is counted in milliseconds: in microseconds, the level of a large limit would exceed 2^53.
        period, tick = (DAY, 1000) if self.name == "requests_per_day" else (MINUTE, 1)
        return {"limit": self.limit, "period": period, "tick": tick, "cost": self.cost}


class _Count(NamedTuple):
    subject: SubjectLimits
    name: str
    limit: int


class _Budget(NamedTuple):
    subject: SubjectLimits
    budget: BudgetLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The limits that apply to a demand, and the amounts that it requests from them."""

    principal: Principal
    demand: Demand
    id: str
    rates: Sequence[_Rate]
    counts: Sequence[_Count]
    budgets: Sequence[_Budget]
    # Output tokens that limits other than budgets allow. None if the client states a maximum or no limit applies.
    most_output: int | None
    want: int
    least: int

    @property
    def is_stateful(self) -> bool:
        """True if the reservation is kept until it is settled, and must be stored."""
        return bool(self.counts or self.budgets)

    @property
    def is_empty(self) -> bool:
        """True if no limit applies."""
        return not (self.rates or self.is_stateful)

    @property
    def keys(self) -> list[str]:
        """The keys of the rates."""
        return [_rate_key(self.principal.team_id, rate.key) for rate in self.rates]

    def document(self, op: str = "reserve", *, after: int = -1) -> dict[str, Any]:
        """Return the argument of the script, which requires a state with a later epoch than `after`."""
        demand = self.demand
        flags = (("R", demand.run), ("Q", demand.queued), ("S", demand.stream))
        return {
            "op": op,
            "id": self.id,
            "after": after,
            "zone": self.principal.time_zone,
            "stateful": self.is_stateful,
            "flags": "".join(name for name, is_set in flags if is_set),
            "subjects": subjects(self.principal.key_id, demand.end_user),
            "rates": [rate.document() for rate in self.rates],
            "counts": [
                {"kind": _COUNTS[count.name], "subject": _subject(count.subject), "limit": count.limit}
                for count in self.counts
            ],
            "budgets": [self._budget(limit) for limit in self.budgets],
            "want": self.want,
            "least": self.least,
        }

    def _budget(self, limit: _Budget) -> dict[str, Any]:
        since, until = bounds(limit.budget.period, shared_now(), self.principal.time_zone)
        return {
            "subject": _subject(limit.subject),
            "period": limit.budget.period,
            "start": microseconds(since),
            "stop": microseconds(until),
            "amount": int(limit.budget.amount * UNITS),
        }

    def grant(self, reply: Reply) -> Grant:
        """Return the grant for a reply of the script that begins with `ok`."""
        _, at, epoch, amount, *numbers = reply
        rates = list(zip(self.rates, _triples(numbers), strict=True))
        demand, granted = self.demand, int(amount)
        most = self.most_output
        if demand.cost is not None and demand.max_output_tokens is None and self.budgets:
            covered = _covered(demand, granted, most if most is not None else UNSTATED_MAXIMUM)
            most = covered if most is None else min(most, covered)
        taken = [(rate, numbers[0]) for rate, numbers in rates if rate.name == "tokens_per_minute"]
        return Grant(
            id=self.id,
            team_id=self.principal.team_id,
            key_id=self.principal.key_id,
            end_user=demand.end_user,
            epoch=int(epoch),
            headers=rate_headers([(rate, left, reset) for rate, (_, left, reset) in rates]),
            max_output_tokens=most,
            amount=Decimal(granted) / UNITS,
            tokens=max((rate.cost for rate, _ in taken), default=0),
            run=demand.run,
            stream=demand.stream,
            queued=demand.queued,
            needs_row=self.is_stateful,
            at=datetime.fromtimestamp(int(at) // 1_000_000, UTC) + timedelta(microseconds=int(at) % 1_000_000),
            rates=[TakenRate(key=rate.key, limit=rate.limit, taken=number) for rate, number in taken],
            time_zone=self.principal.time_zone,
        )

    def refusal(self, reply: Reply) -> "Refusal":
        """Return the refusal for a reply of the script that begins with `refused`."""
        _, _, kind, place, wait, used, reserved, *numbers = reply
        headers = rate_headers(
            [(rate, left, reset) for rate, (_, left, reset) in zip(self.rates, _triples(numbers), strict=True)]
        )
        number, seconds = int(place) - 1, int(wait) / 1_000_000
        if kind == "rate":
            rate = self.rates[number]
            asked = f", requested {rate.cost}" if rate.cost > 1 else ""
            message = (
                f"Rate limit reached for {_NAMES[rate.name]} of {whose(rate.subject)}: limit {rate.limit}, "
                f"used {used}{asked}. Please try again in {duration(int(wait))}."
            )
            reached = LimitReached(
                message,
                headers={**headers, **retry_headers(seconds)},
                subject=rate.subject.kind,
                wait_seconds=seconds,
            )
            return Refusal(reached, rate.subject, rate.name)
        if kind == "count":
            count = self.counts[number]
            message = (
                f"Limit reached for {_NAMES[count.name]} of {whose(count.subject)}: limit {count.limit}, "
                f"in use {used}. Please try again when one of them has ended."
            )
            return Refusal(LimitReached(message, headers={**headers, **retry_headers(1)}), count.subject, count.name)
        one = self.budgets[number]
        name = f"budget_{one.budget.period}"
        spent, held = Decimal(used) / UNITS, Decimal(reserved) / UNITS
        figures = (
            f"limit ${_dollars(one.budget.amount)} per {one.budget.period}, spent ${_dollars(spent)}, "
            f"reserved by requests in progress ${_dollars(held)}, requested ${_dollars(Decimal(self.least) / UNITS)}"
        )
        if kind == "reserved":
            message = (
                f"The budget of {whose(one.subject)} is reserved by requests in progress: {figures}. "
                "Please try again when one of them has ended."
            )
            return Refusal(LimitReached(message, headers={**headers, **retry_headers(1)}), one.subject, name)
        message = f"You exceeded the budget of {whose(one.subject)}: {figures}. It is renewed in {duration(int(wait))}."
        exceeded = InsufficientQuota(
            message,
            headers=headers,
            subject=one.subject.kind,
            wait_seconds=seconds,
            needed=Decimal(self.least) / UNITS,
        )
        return Refusal(exceeded, one.subject, name)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error of a request that a limit refuses, with the limit and its subject."""

    error: ApiError
    subject: SubjectLimits
    limit: str


def make_plan(
    principal: Principal, demand: Demand, own: SubjectLimits | None, *, reservation_id: str
) -> "Plan | Refusal":
    """Return the plan of a demand, or a refusal if it can never be granted. `own` are the end user's own limits.

    Raises `PriceUnknown` if a hard budget applies and the call has no price, `CostUnbounded` if its cost has no known
    maximum.
    """
    applying = limits_of(principal, demand.end_user, own)
    most: int | None = None
    rates, counts, budgets = [], [], []
    least_tokens = demand.least_input_tokens + (demand.max_output_tokens or 0)
    for subject in applying:
        for name, limit in subject.values.items():
            if name == "max_output_tokens":
                if demand.max_output_tokens is None:
                    most = limit if most is None else min(most, limit)
                elif demand.max_output_tokens > limit:
                    return _too_large(subject, name, limit, demand.max_output_tokens)
            elif name == "tokens_per_minute":
                if least_tokens > limit:
                    return _too_large(subject, name, limit, least_tokens)
                tokens = _tokens(demand, limit)
                if tokens:
                    rates.append(_Rate(subject, name, limit, tokens))
                if demand.max_output_tokens is None and demand.cost is not None:
                    # A response never uses more than a whole window.
                    room = max(limit - demand.input_tokens, demand.least_output_tokens)
                    most = room if most is None else min(most, room)
            elif name in {"requests_per_minute", "requests_per_day"}:
                if demand.requests:
                    rates.append(_Rate(subject, name, limit, demand.requests))
            elif name in _COUNTS and _wants(demand, name):
                counts.append(_Count(subject, name, limit))
        if demand.cost is not None:
            budgets += [_Budget(subject, budget) for budget in subject.hard_budgets]
    want, least = _amounts(demand, budgets, most)
    if least is None:
        budgets = []
    return Plan(
        principal=principal,
        demand=demand,
        id=reservation_id,
        rates=rates,
        counts=counts,
        budgets=budgets,
        most_output=most,
        want=want,
        least=least or 0,
    )


def _amounts(demand: Demand, budgets: Sequence[_Budget], most: int | None) -> tuple[int, int | None]:
    """Return the amount that a call requests from its budgets, and the minimum that it needs.

    The minimum is None if the call has no price and the budgets allow that.
    """
    if demand.cost is None or not budgets:
        return 0, 0
    if demand.max_output_tokens is not None:
        worst = smallest = demand.cost(demand.input_tokens, demand.max_output_tokens)
    else:
        largest = UNSTATED_MAXIMUM if most is None else min(most, UNSTATED_MAXIMUM)
        worst = demand.cost(demand.input_tokens, largest)
        smallest = demand.cost(demand.input_tokens, min(demand.least_output_tokens, largest))
    if not isinstance(worst, UnknownPrice) and not isinstance(smallest, UnknownPrice):
        return _units(worst), _units(smallest)
    refusing = [limit.subject for limit in budgets if not limit.budget.allows_unknown_prices]
    if refusing:
        unknown = worst if isinstance(worst, UnknownPrice) else smallest
        raise PriceUnknown(f"{unknown}, so the hard budget of {whose(refusing[0])} cannot cover the call. {_REMEDY}")
    return 0, None


def limits_of(principal: Principal, end_user: str, own: SubjectLimits | None) -> list[SubjectLimits]:
    """Return the limits that apply to a request: of the team, the key, and the end user, if it names one."""
    found = []
    for subject in principal.limits:
        if subject.kind != "end_user":
            found.append(subject)
        elif end_user and own is None:
            found.append(replace(subject, id=end_user))
    return [*found, *([own] if own is not None else [])]


def renewal(plan: Plan) -> Plan:
    """Return a plan that repeats a reservation without charging the rates again."""
    return replace(plan, rates=())


def status_plan(principal: Principal, end_user: str, own: SubjectLimits | None) -> Plan:
    """Return the plan that reads all limits of a principal."""
    applying = limits_of(principal, end_user, own)
    rates = ("requests_per_minute", "tokens_per_minute", "requests_per_day")
    return Plan(
        principal=principal,
        demand=Demand(requests=0, end_user=end_user),
        id="",
        rates=[
            _Rate(subject, name, subject.values[name], 0)
            for subject in applying
            for name in rates
            if name in subject.values
        ],
        counts=[
            _Count(subject, name, subject.values[name])
            for subject in applying
            for name in _COUNTS
            if name in subject.values
        ],
        budgets=[_Budget(subject, budget) for subject in applying for budget in subject.hard_budgets],
        most_output=None,
        want=0,
        least=0,
    )


def read_status(plan: Plan, reply: Reply) -> LimitStatus:
    """Return the status from the reply to `status_plan`."""
    numbers = reply[2:]
    size, counted = 3 * len(plan.rates), len(plan.counts)
    rates = list(zip(plan.rates, _triples(numbers[:size]), strict=True))
    limits = [
        LimitUse(
            subject=rate.subject.kind,
            subject_id=rate.subject.id,
            limit=rate.name,
            value=rate.limit,
            remaining=left,
            reset_seconds=reset / 1_000_000,
        )
        for rate, (_, left, reset) in rates
    ]
    for count, used in zip(plan.counts, numbers[size : size + counted], strict=True):
        limits.append(
            LimitUse(
                subject=count.subject.kind,
                subject_id=count.subject.id,
                limit=count.name,
                value=count.limit,
                remaining=max(0, count.limit - int(used)),
            )
        )
    pairs = iter(numbers[size + counted :])
    budgets = []
    for limit, spent, reserved in zip(plan.budgets, pairs, pairs, strict=False):
        since, until = bounds(limit.budget.period, shared_now(), plan.principal.time_zone)
        budgets.append(
            BudgetUse(
                subject=limit.subject.kind,
                subject_id=limit.subject.id,
                period=limit.budget.period,
                amount=limit.budget.amount,
                is_hard=True,
                spent=Decimal(spent) / UNITS,
                reserved=Decimal(reserved) / UNITS,
                since=since,
                until=until,
            )
        )
    headers = rate_headers([(rate, left, reset) for rate, (_, left, reset) in rates])
    return LimitStatus(limits=limits, budgets=budgets, headers=headers)


def settlement(
    grant: Grant, *, tokens: int, cost: Decimal | None, keep: bool, at: datetime
) -> tuple[list[str], dict[str, Any]]:
    """Return the keys of the rates and the argument of the script that settles a grant."""
    since = microseconds(grant.at) if grant.at is not None else 0
    document = {
        "op": "settle",
        "id": grant.id,
        "stateful": grant.needs_row,
        "keep": keep,
        "zone": grant.time_zone,
        "cost": _units(cost or Decimal(0)),
        "starts": {period: microseconds(bounds(period, at, grant.time_zone)[0]) for period in _PERIODS},
        "rates": [
            {
                "limit": rate.limit,
                "period": MINUTE,
                "tick": 1,
                "taken": rate.taken,
                "used": tokens,
                "since": since,
            }
            for rate in grant.rates
        ],
    }
    return [_rate_key(grant.team_id, rate.key) for rate in grant.rates], document


def rate_headers(rates: Sequence[tuple[_Rate, int, int]]) -> Mapping[str, str]:
    """Return the headers `x-ratelimit-*` from rates, their remaining amounts and the times until they are full, in µs.

    If several limits of the same kind apply, the one with the smallest remaining amount is reported.
    """
    lowest: dict[str, tuple[int, int, int]] = {}
    for rate, left, reset in rates:
        kind = "tokens" if rate.name == "tokens_per_minute" else "requests"
        found = (left, -reset, rate.limit)
        if kind not in lowest or found < lowest[kind]:
            lowest[kind] = found
    headers = {}
    for kind, (left, reset, limit) in lowest.items():
        headers[f"x-ratelimit-limit-{kind}"] = str(limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(left)
        headers[f"x-ratelimit-reset-{kind}"] = duration(-reset)
    return headers


def duration(microseconds: int) -> str:
    """Return a duration as Go writes it, in whole milliseconds rounded up: `12ms`, `8.64s`, `6m0s`, `1h0m0s`."""
    milliseconds = ceil(microseconds / 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def whose(subject: SubjectLimits) -> str:
    """Return the subject of limits in words for an error message, such as `your team`."""
    if subject.kind == "end_user":
        return f"end user '{subject.id}'"
    return "your team" if subject.kind == "team" else "your API key"


def _too_large(subject: SubjectLimits, name: str, limit: int, needed: int) -> Refusal:
    message = (
        f"Request too large for the limit of {_NAMES[name]} of {whose(subject)}: limit {limit}, requested {needed}. "
        "Send less input or lower max_output_tokens."
    )
    return Refusal(RequestTooLargeForLimit(message), subject, name)


def _tokens(demand: Demand, limit: int) -> int:
    if demand.cost is None and not demand.input_tokens and not demand.max_output_tokens:
        return 0
    if demand.max_output_tokens is not None:
        return demand.input_tokens + demand.max_output_tokens
    return demand.input_tokens + min(UNSTATED_TOKENS, max(limit - demand.input_tokens, 0))


def _wants(demand: Demand, name: str) -> bool:
    return {"concurrent_runs": demand.run, "queued_runs": demand.queued, "open_streams": demand.stream}[name]


def _covered(demand: Demand, units: int, most: int) -> int:
    """Return the largest number of output tokens, up to `most`, that costs at most `units`. Found by bisection."""
    assert demand.cost is not None  # noqa: S101 - for the type checker
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        cost = demand.cost(demand.input_tokens, middle)
        is_covered = not isinstance(cost, UnknownPrice) and _units(cost) <= units
        low, high = (middle, high) if is_covered else (low, middle - 1)
    return low


def _units(cost: Decimal) -> int:
    return int((cost * UNITS).to_integral_value(ROUND_CEILING))


def _dollars(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def _subject(subject: SubjectLimits) -> str:
    return "t" if subject.kind == "team" else f"{'k' if subject.kind == 'key' else 'u'}:{subject.id}"


def _rate_key(team_id: str, name: str) -> str:
    return f"{{{team_id}}}:rate:{name}"


def _triples(numbers: Sequence[str]) -> list[tuple[int, int, int]]:
    values = [int(number) for number in numbers]
    return list(zip(values[::3], values[1::3], values[2::3], strict=True))
