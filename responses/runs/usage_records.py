"""Usage records of upstream calls that are passed through. Runs write theirs together with the turn."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from kernel.clock import now
from responses.engine.turn import Usage
from responses.runs.rows import Row, new_row
from responses.runs.store import Change, submit_new
from tenants.directory import Route
from tenants.models import UsageRecord
from tenants.principal import Principal

Spent = tuple[str, Usage]
"""The id of the object that a call was for, and the usage of the call."""


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
        ended, prices = now(), self.route.prices
        # Prices are those of tokens, so a call that is billed otherwise has an unknown cost, not none.
        is_priced = not (usage.audio_seconds or usage.characters) or usage.input_tokens or usage.output_tokens
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
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            estimated=usage.estimated,
            audio_seconds=usage.audio_seconds,
            characters=usage.characters,
            duration_ms=round((ended - self.began).total_seconds() * 1000),
            request_id=self.request_id,
            cost=prices.cost(
                input_tokens=usage.input_tokens,
                cached_tokens=usage.cached_tokens,
                cache_write_tokens=usage.cache_write_tokens,
                output_tokens=usage.output_tokens,
            )
            if is_priced
            else None,
            prices=prices.noted(),
        )
        await submit_new(Change(team_id=self.principal.team_id, insert=[record, *rows]))
