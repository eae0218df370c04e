"""Usage records of upstream calls that are passed through. Runs write theirs together with the turn."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from kernel.clock import now
from responses.engine.turn import Usage
from responses.runs.rows import Row, new_row
from responses.runs.store import Change, submit_new
from tenants.directory import Route
from tenants.models import UsageRecord
from tenants.prices import PriceList, Quantities
from tenants.principal import Principal

Spent = tuple[str, Usage]
"""The id of the object that a call was for, and the usage of the call."""


def usage_columns(usage: Usage, prices: PriceList, *, at: datetime, tier: str = "") -> dict[str, Any]:
    """Return the columns of a usage record: tokens by kind, service tier, cost, and the prices it is made of.

    `at` is when the call began, which decides about prices with a date. `tier` is that of a call without usage.
    """
    tier = usage.service_tier or tier
    quantities = Quantities(
        **{name: getattr(usage, name) for name in _QUANTITIES},
        # A call that used nothing was refused or failed before it began.
        calls=1 if any(getattr(usage, name) for name in _QUANTITIES) else 0,
    )
    cost = prices.cost(quantities, tier=tier, at=at)
    return {
        **{name: getattr(usage, name) for name in _COLUMNS},
        "service_tier": tier[:40],
        "cost": None if cost is None else cost.total,
        "prices": None if cost is None else cost.stored(),
    }


_QUANTITIES = tuple({each.name for each in fields(Usage)} & {each.name for each in fields(Quantities)})
# Cached audio and image tokens are in the applied prices only.
_COLUMNS = tuple({each.name for each in fields(Usage)} - {"cached_audio_tokens", "cached_image_tokens", "service_tier"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedCall:
    """One upstream call on behalf of a principal. Its duration counts from the creation of this object."""

    principal: Principal
    route: Route
    endpoint: str
    request_id: str
    began: datetime = field(default_factory=now)

    @asynccontextmanager
    async def recorded(self, spent: Callable[[str], Spent], *, success: str = "stop") -> AsyncIterator[None]:
        """Write the usage record when the block ends. `spent` returns what it says for an outcome."""
        outcome = "failed"
        try:
            yield
            outcome = success
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "interrupted"
            raise
        finally:
            object_id, usage = spent(outcome)
            # Also for a failed or interrupted call, which may have spent tokens. Shielded, because the request may be
            # cancelled: the call was made all the same.
            await asyncio.shield(self.write(object_id=object_id, outcome=outcome, usage=usage))

    async def write(self, *, object_id: str, outcome: str, usage: Usage, rows: Sequence[Row] = ()) -> None:
        """Write the usage record, also of a failed call. `rows` are inserted in the same transaction."""
        ended = now()
        record = new_row(
            UsageRecord,
            team_id=self.principal.team_id,
            api_key_id=self.principal.key_id,
            occurred_at=ended,
            endpoint=self.endpoint,
            object_id=object_id[:64],
            model=self.route.model,
            upstream_id=self.route.upstream.id,
            upstream_model=self.route.upstream_model,
            outcome=outcome,
            duration_ms=round((ended - self.began).total_seconds() * 1000),
            request_id=self.request_id,
            **usage_columns(usage, self.route.prices, at=self.began),
        )
        await submit_new(Change(team_id=self.principal.team_id, insert=[record, *rows]))
