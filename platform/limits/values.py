"""Values of limits: the demand of a request, its grant, and the use of limits and budgets."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from typing_extensions import override

from core.clock import shared_now
from tenants.models import ReservationKind
from tenants.models.limits import END_USER_LENGTH
from tenants.principal import SubjectKind

# The minimum of `max_output_tokens`: a call with less output is not worth its cost.
LEAST_OUTPUT = 16


@dataclass(frozen=True, slots=True)
class UnknownPrice:
    """The maximum cost of a call that a model without a price may serve.

    `has_priced_target`: other targets of the model have a price.
    """

    model: str
    has_priced_target: bool = False

    @override
    def __str__(self) -> str:
        place = " at one of its upstreams" if self.has_priced_target else ""
        return f"The model '{self.model}' has no price{place}"


Cost = Callable[[int, int], Decimal | UnknownPrice]
"""Function that returns the maximum cost of a call with these input and output tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand of a request, run or call on the limits.

    - `requests`: requests charged to the rate limits; 0 for all calls of a run but the first.
    - `input_tokens`: the estimated input. `least_input_tokens`: a lower bound of the input. A request is too large for
      a limit if even the lower bound does not fit.
    - `max_output_tokens`: the client's maximum; None if the platform may choose a maximum that fits the limits.
    - `least_output_tokens`: the smallest maximum of output with which the call is useful.
    - `cost`: function for the maximum cost of the call; None for requests that cost nothing.
    - `run`, `stream`, `queued`: the demand counts as a concurrent run, an open stream, a queued run.
    - `end_user`: see `end_user_of`. `endpoint`: for the counts of rejected requests.
    """

    requests: int = 1
    input_tokens: int = 0
    least_input_tokens: int = 0
    max_output_tokens: int | None = None
    least_output_tokens: int = LEAST_OUTPUT
    cost: Cost | None = None
    run: bool = False
    stream: bool = False
    queued: bool = False
    end_user: str = ""
    endpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRate:
    """Tokens that a reservation has taken from a rate."""

    key: str
    limit: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A reservation. `epoch` is the epoch of the state in which it was made.

    `max_output_tokens` is the maximum that the budgets cover, or None if it was not lowered. `amount` and `tokens` are
    reserved. `needs_row`: the grant must be stored (`row`) before its work starts, if the epoch is still current. Other
    grants only took tokens from rates, which may be lost together with Redis. `is_open`: Redis was not available, and
    nothing is reserved.
    """

    id: str
    team_id: str
    key_id: str
    end_user: str = ""
    epoch: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    max_output_tokens: int | None = None
    amount: Decimal = Decimal(0)
    tokens: int = 0
    run: bool = False
    stream: bool = False
    queued: bool = False
    needs_row: bool = False
    at: datetime | None = None
    rates: Sequence[TakenRate] = ()
    time_zone: str = "UTC"
    is_open: bool = False

    def occurred(self, at: datetime) -> datetime:
        """Return the time for the usage record: `at`, but not before the reservation and not in the future.

        The period of a budget depends on the clocks of Redis and the database. The clock of this machine may have been
        set.
        """
        return at if self.at is None else max(min(at, shared_now()), self.at)

    def row(self) -> dict[str, Any]:
        """Return the values of the `Reservation`, without `response_id`, the lease and `details`."""
        return {
            "id": self.id,
            "team_id": self.team_id,
            "api_key_id": self.key_id,
            "end_user": self.end_user,
            "kind": (ReservationKind.RUN if self.run or self.queued else ReservationKind.CALL).value,
            "epoch": self.epoch,
            "amount": self.amount,
            "tokens": self.tokens,
            "is_run": self.run,
            "is_queued": self.queued,
            "is_stream": self.stream,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """The use of one limit of a subject. `reset_seconds`: time until all of it is available, without further use."""

    subject: SubjectKind
    subject_id: str
    limit: str
    value: int
    remaining: int
    reset_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """The use of a budget in its current period, in US dollars."""

    subject: SubjectKind
    subject_id: str
    period: str
    amount: Decimal
    is_hard: bool
    spent: Decimal
    reserved: Decimal
    since: datetime
    until: datetime

    @property
    def remaining(self) -> Decimal:
        """US dollars that may still be spent; not below zero."""
        return max(self.amount - self.spent - self.reserved, Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """The use of all limits and budgets of a principal, and the headers that report it."""

    limits: Sequence[LimitUse] = ()
    budgets: Sequence[BudgetUse] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def end_user_of(safety_identifier: str | None, user: str | None = None) -> str:
    """Return the end user that a request names, or an empty string. A long name is replaced by a short unique one."""
    name = (safety_identifier or user or "").replace("\x00", "").replace("\n", " ")
    if len(name) <= END_USER_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: END_USER_LENGTH - 33]}#{digest}"
