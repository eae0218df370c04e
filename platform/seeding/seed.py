"""Seeding of a platform: teams, the runs of their scenarios, and their other rows."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from random import Random
from typing import Any

from django.db import models, transaction

from conversations.models import Conversation
from core.clock import now
from core.ids import new_id
from responses.models import Response
from responses.rollups import aggregate
from seeding import teams
from seeding.budgets import set_budgets
from seeding.other_tables import OtherTables
from seeding.runs import SeedRun
from seeding.scenarios import SCENARIOS, Scenario, long_conversation, queued, running, waiting
from seeding.teams import SeededTeam, SeededUser
from seeding.texts import TEXTS, TextPicker
from tenants import scope
from tenants.models import Upstream

# Each team but the last gets this share of the remaining responses, so the first team is the largest.
_SHARE = 0.55
_LONG_ITEMS = 300
_LONG_SHARE, _LONG_PART = 0.3, 0.9
_DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class SeedOptions:
    """Amount of data. For tests, `mark` is added to all content and `label` to all names."""

    responses: int = 500
    teams: int = 3
    days: int = 30
    seed: int = 1
    mark: str = ""
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """Created teams, users and number of responses."""

    tenants: Sequence[SeededTeam]
    staff: Sequence[SeededUser]
    responses: int


def seed(order: SeedOptions) -> Seeded:
    """Add teams with data. Equal seeds produce equal content; ids and times differ."""
    at, rng = now(), Random(order.seed)  # noqa: S311 - not for secrets
    names = teams.free_names(order.teams, label=order.label)
    tenants = [teams.make_tenant(name, rng=rng, at=at, days=order.days) for name in names]
    upstream = teams.make_models([tenant.team for tenant in tenants])
    left = order.responses
    for number, tenant in enumerate(tenants, start=1):
        count = max(1, left if number == order.teams else round(left * _SHARE))
        left -= count
        history = _TeamHistory(tenant, upstream, rng=Random(rng.random()), at=at, order=order)  # noqa: S311 - the same
        # In a thread of its own, because this one may have an event loop.
        with ThreadPoolExecutor(1) as executor:
            executor.submit(asyncio.run, history.play(count)).result()
        with scope.team(tenant.team.pk), transaction.atomic():
            for kind, rows in history.rows.items():
                kind._default_manager.bulk_create(rows, batch_size=500)
            OtherTables(tenant, TextPicker(rng, order.mark), at=at, days=order.days).write(history.responses)
            set_budgets(tenant, number=number, at=at)
    # These hours may have been rolled up already.
    aggregate.discard(since=at - (order.days + 1) * _DAY)
    return Seeded(tenants=tenants, staff=teams.make_staff(), responses=order.responses - left)


class _TeamHistory:
    """The history of one team. `rows` are inserted together, so their order does not matter."""

    def __init__(
        self, tenant: SeededTeam, upstream: Upstream, *, rng: Random, at: datetime, order: SeedOptions
    ) -> None:
        self._tenant, self._upstream, self._rng, self._at, self._days = tenant, upstream, rng, at, order.days
        # A separate generator: the times depend on the current day, but the content must not.
        self._hours = Random(rng.random())  # noqa: S311 - not for secrets
        self._picker = TextPicker(rng, order.mark)
        self.rows: dict[type[models.Model], list[models.Model]] = {}
        self.responses: list[Response] = []

    async def play(self, count: int) -> None:
        """Play scenarios until the number of responses is reached."""
        endless, most = Scenario(long_conversation, in_conversation=True), round(count * _LONG_SHARE)
        # Over most of the period: as a chat of one afternoon it would be a third of all responses.
        gap = _LONG_PART * self._days * _DAY / max(1, most)
        await self._play(endless, self._at - _LONG_PART * self._days * _DAY, most=most, gap=gap)
        # No longer ago than a decision may take.
        awaited = 3600 * 24 * min(6, self._days)
        for script, longest in (*[(running, 900)] * 3, *[(queued, 90)] * 2, *[(waiting, awaited)] * 2):
            await self._play(Scenario(script), self._at - timedelta(seconds=self._rng.randrange(2, longest)))
        # Each scenario is played once at first, so that even little data shows all of them.
        kinds = self._rng.sample(SCENARIOS, len(SCENARIOS))
        while len(self.responses) < count:
            kind = (
                kinds.pop() if kinds else self._rng.choices(SCENARIOS, [scenario.weight for scenario in SCENARIOS])[0]
            )
            await self._play(kind, self._sometime(), most=count - len(self.responses))

    def _sometime(self) -> datetime:
        """Return a random time of the period, most likely in working hours."""
        while True:
            at = self._at - _DAY * self._days * self._hours.random() - timedelta(minutes=20)
            busy = (0.12 if not 6 <= at.hour < 20 else 1.0) * (0.35 if at.weekday() >= 5 else 1.0)
            if self._hours.random() < busy:
                return at

    async def _play(self, kind: Scenario, at: datetime, *, most: int = 99, gap: timedelta | None = None) -> None:
        """Play a scenario up to a number of responses, `gap` apart on average, or with the pauses of the scenario.

        A conversation also ends when it has `_LONG_ITEMS` items, or half an hour before now.
        """
        key = self._tenant.keys[0 if self._rng.random() < 0.8 else 1]
        conversation = previous = None
        if kind.in_conversation:
            channel, topic = self._rng.choice(("chat", "e-mail", "app")), self._picker.marked("shipping")
            conversation = Conversation(
                id=new_id("conv", at=at),
                team_id=self._tenant.team.pk,
                api_key=key,
                created_at=at,
                metadata={"channel": channel, "topic": topic},
            )
            self._add([conversation])
        for exchange in islice(kind.script(self._picker), most):
            previous = SeedRun(
                replace(
                    exchange,
                    request={**self._request_options(), **exchange.request},
                    decided_by=f"user:{self._tenant.people[0].username}",
                ),
                key=key,
                upstream=self._upstream,
                at=at,
                rng=self._rng,
                previous=previous,
                conversation=conversation,
            )
            await previous.play()
            self._add(previous.rows)
            pause = timedelta(seconds=exchange.pause)
            at = previous.at + (pause if gap is None else max(pause, gap * self._hours.uniform(0.2, 1.8)))
            if conversation and (conversation.next_position >= _LONG_ITEMS or at > self._at - timedelta(minutes=30)):
                return

    def _request_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"model": self._rng.choice(("atlas-large", "atlas-large", "atlas-mini"))}
        if self._rng.random() < 0.6:
            options["safety_identifier"] = f"user-{self._rng.choice(TEXTS['people'])}"
        if self._rng.random() < 0.7:
            environment = self._rng.choice(("production", "production", "staging"))
            options["metadata"] = {"environment": environment, "ticket": f"T-{self._rng.randrange(1000, 9999)}"}
            if self._picker.mark:
                options["metadata"]["note"] = self._picker.mark
        return options

    def _add(self, rows: Sequence[models.Model]) -> None:
        for row in rows:
            self.rows.setdefault(type(row), []).append(row)
        self.responses += [row for row in rows if isinstance(row, Response)]
