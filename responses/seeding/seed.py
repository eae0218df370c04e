"""Seeding of a platform: replays the scenarios of each team and writes its rows."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from conversations.models import Conversation
from kernel.clock import now
from kernel.ids import new_id
from responses.models import Response
from responses.rollups import aggregate
from responses.seeding import scenarios, teams
from responses.seeding.other_tables import OtherTables
from responses.seeding.replay import OpenConversation, Replayer, SeedActor
from responses.seeding.rows import Rows
from responses.seeding.teams import SeededTeam, SeededUser
from responses.seeding.texts import TextPicker
from tenants.models import Upstream

# The first team is the largest.
_SHARE = 0.55
_LONG_ITEMS = 300
_LONG_SHARE = 0.3
_RUNNING, _QUEUED = 3, 2
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
    at, rng = now(), random.Random(order.seed)  # noqa: S311 - not for secrets
    names = teams.free_names(order.teams, label=order.label)
    tenants = [teams.make_tenant(name, rng=rng, at=at, days=order.days) for name in names]
    upstream = teams.make_models([tenant.team for tenant in tenants])
    made = 0
    for tenant, count in zip(tenants, _shares(order.responses, order.teams), strict=True):
        history = _TeamHistory(tenant, upstream, rng=random.Random(rng.random()), at=at, order=order)  # noqa: S311 - the same
        rows = asyncio.run(history.played(count))
        rows.write()
        responses = rows.of(Response)
        OtherTables(tenant, TextPicker(rng, order.mark), at=at, days=order.days).write(responses)
        made += len(responses)
    # These hours may have been rolled up already.
    aggregate.discard(since=at - (order.days + 1) * _DAY)
    return Seeded(tenants=tenants, staff=teams.make_staff(), responses=made)


def _shares(whole: int, parts: int) -> list[int]:
    """Split the number of responses among teams; the first team gets the most."""
    counts: list[int] = []
    for _ in range(parts - 1):
        counts.append(max(1, round((whole - sum(counts)) * _SHARE)))
    return [*counts, max(1, whole - sum(counts))]


class _TeamHistory:
    """The history of one team."""

    def __init__(
        self, tenant: SeededTeam, upstream: Upstream, *, rng: random.Random, at: datetime, order: SeedOptions
    ) -> None:
        self._tenant, self._upstream, self._rng, self._at = tenant, upstream, rng, at
        self._days = order.days
        # A separate generator: the times depend on the current day, but the content must not.
        self._hours = random.Random(rng.random())  # noqa: S311 - not for secrets
        self._picker = TextPicker(rng, order.mark)
        self._rows = Rows(tenant.team.pk)
        self._replayer = Replayer(self._rows)

    async def played(self, count: int) -> Rows:
        """Replay scenarios until the number of responses is reached."""
        await self._long(round(count * _LONG_SHARE))
        for _ in range(_RUNNING):
            await self._scene(
                scenarios.Scenario(scenarios.is_running, 1), self._at - timedelta(seconds=self._rng.randrange(20, 900))
            )
        for _ in range(_QUEUED):
            await self._scene(
                scenarios.Scenario(scenarios.is_queued, 1), self._at - timedelta(seconds=self._rng.randrange(2, 90))
            )
        kinds = list(scenarios.SCENARIOS)
        # Each scenario once, so that even little data shows everything.
        self._rng.shuffle(kinds)
        while self._made < count:
            kind = (
                kinds.pop()
                if kinds
                else self._rng.choices(scenarios.SCENARIOS, [one.weight for one in scenarios.SCENARIOS])[0]
            )
            await self._scene(kind, self._sometime(), most=count - self._made)
        return self._rows

    @property
    def _made(self) -> int:
        return len(self._rows.of(Response))

    def _sometime(self) -> datetime:
        """Return a random time of the period, most likely in working hours."""
        while True:
            at = self._at - _DAY * self._days * self._hours.random() - timedelta(minutes=20)
            busy = (0.12 if not 6 <= at.hour < 20 else 1.0) * (0.35 if at.weekday() >= 5 else 1.0)
            if self._hours.random() < busy:
                return at

    def _actor(self) -> SeedActor:
        key = self._tenant.keys[0] if self._rng.random() < 0.8 else self._tenant.keys[1]
        return SeedActor(key=key, upstream=self._upstream, upstream_model="demo", rng=self._rng)

    async def _scene(self, kind: scenarios.Scenario, at: datetime, *, most: int = 99) -> None:
        actor, previous = self._actor(), None
        talk = self._talk(at, actor) if kind.talks else None
        scene = kind.play(self._picker)
        exchange = next(scene)
        while most > 0:
            previous = await self._replayer.play(exchange, actor, at, previous=previous, talk=talk)
            most -= 1
            at = previous.ended + timedelta(seconds=exchange.pause)
            try:
                exchange = scene.send(previous)
            except StopIteration:
                return

    async def _long(self, most: int) -> None:
        """Replay a conversation over several days, up to a number of items or responses."""
        at = self._at - timedelta(days=min(4, self._days))
        actor = self._actor()
        talk, scene = self._talk(at, actor), scenarios.works_long(self._picker)
        exchange, previous = next(scene), None
        while most > 0 and talk.row.next_position < _LONG_ITEMS and at < self._at - timedelta(minutes=30):
            previous = await self._replayer.play(exchange, actor, at, previous=previous, talk=talk)
            most -= 1
            at = previous.ended + timedelta(seconds=exchange.pause)
            exchange = scene.send(previous)

    def _talk(self, at: datetime, actor: SeedActor) -> OpenConversation:
        row = Conversation(
            id=new_id("conv", at=at),
            team_id=self._tenant.team.pk,
            api_key=actor.key,
            created_at=at,
            metadata={
                "channel": self._picker.pick(("chat", "e-mail", "app")),
                "topic": self._picker.marked("shipping"),
            },
        )
        self._rows.add([row])
        return OpenConversation(row=row)
