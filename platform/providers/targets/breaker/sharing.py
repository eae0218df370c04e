"""The circuit breakers of this process, and their exchange with other processes through Redis.

A hash has the state of each target that has failed. Changes are also published, and a task reads the hash every second
while the process uses models with several targets: published changes may be lost. Without Redis each process goes on
with its own view, and afterwards adds to the hash what is missing there. The same task reports the requests in flight
(`shared_loads`).

A key per target lets one process of all probe it: the probing process sets the key if it is missing, and the process
that opens the breaker sets it for the length of the pause.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import redis
from django.conf import settings

from core.clock import shared_now
from core.db import wait_limit
from core.errors import Failure
from core.per_loop import PerLoop
from core.telemetry import metrics
from core.work.notifications import Notifier, blocking_client, loop_notifications, wait_within
from core.work.redis_client import loop_client
from providers.targets.breaker.reasons import Reason, reason_of
from providers.targets.breaker.state import PROBE_SECONDS, Breaker, Snapshot, State
from providers.targets.shared_loads import LoadReporter
from tenants.directory import Route, target_loads

logger = logging.getLogger(__name__)
_STATES, _PROBES, _CHANNEL = "platform:targets", "platform:target-probe:", "targets"
_POLL_SECONDS = 1.0
# The task ends after this time without a request to a model with several targets.
_IDLE_SECONDS = 60.0
# A request waits at most this long for Redis.
_PATIENCE_SECONDS = 1.0
# Another process probes the target: usually its result arrives earlier, as a published change.
_RETRY_SECONDS = 0.25
# Redis counts a pause from the arrival of the change. Without this, the first attempt to probe would come too early.
_TOLERANCE_SECONDS = 0.05
# States that have not changed for this long are forgotten: with a wildcard, clients choose the names of models.
_FORGET_SECONDS = 3600.0
_MAX_BREAKERS = 1000
_ERRORS = metrics.REDIS_ERRORS.labels("targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """The breaker of a target and the labels of its metric: names of the upstream and of the public model."""

    breaker: Breaker
    upstream: str
    model: str

    @property
    def document(self) -> dict[str, Any]:
        """The state and the labels, as processes share them."""
        return {"upstream": self.upstream, "model": self.model, **asdict(self.breaker.shared)}


class Breakers:
    """The circuit breakers of an event loop, by target."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._notifier = Notifier(_CHANNEL)
        self._used_at = 0.0
        self._follower: asyncio.Task[None] | None = None
        self._is_synchronized = asyncio.Event()
        self._wake = asyncio.Event()
        self._has_redis = True
        self._loads = LoadReporter()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def admit(self, route: Route) -> bool:
        """Return whether a request may be sent to a target now. If the target is half-open, the request probes it."""
        await self._follow()
        key, at = _key_of(route), _now()
        entry = self._entries.get(key)
        if entry is None or entry.breaker.state(at) is State.CLOSED:
            return True
        if not entry.breaker.begin_probe(at):
            return False
        if not await self._claim_probe(key):
            entry.breaker.leave_probe(_now(), seconds=_RETRY_SECONDS)
        # The state may have changed in the meantime.
        return entry.breaker.lets_through(_now())

    def is_closed(self, route: Route) -> bool:
        """Return whether a target gets requests that are no probes."""
        entry = self._entries.get(_key_of(route))
        return entry is None or entry.breaker.state(_now()) is State.CLOSED

    def seconds_until_probe(self, route: Route) -> float:
        """Return the seconds until a target may be probed; 0 if it may be tried now."""
        entry = self._entries.get(_key_of(route))
        return 0.0 if entry is None else entry.breaker.seconds_until_probe(_now())

    def reason(self, route: Route) -> Reason | None:
        """Return why a target gets no requests; None if it gets requests."""
        entry = self._entries.get(_key_of(route))
        return None if entry is None else entry.breaker.shared.reason

    def failed(
        self, route: Route, failure: Failure, *, status: int | None = None, has_timed_out: bool = False
    ) -> Reason | None:
        """Note a failed request. Return the reason if it speaks against the target; see `reason_of`."""
        reason = reason_of(failure, status=status, has_timed_out=has_timed_out)
        key = _key_of(route)
        entry = self._entries.get(key)
        if reason is None:
            if entry is not None and entry.breaker.refused(_now()):
                self._changed(key, entry, before=State.OPEN)
            return None
        if entry is None:
            entry = self._add(key, upstream=route.upstream.name, model=route.model)
        before, known = entry.breaker.state(_now()), entry.breaker.shared.reason
        if entry.breaker.failed(reason, _now()):
            if reason.needs_operator and reason is not known:
                logger.warning("upstream %s gets no requests for a model: %s", route.upstream.name, reason)
            self._changed(key, entry, before=before)
        return reason

    def succeeded(self, route: Route) -> None:
        """Note a successful answer."""
        key = _key_of(route)
        entry = self._entries.get(key)
        if entry is not None and entry.breaker.succeeded(_now()):
            self._changed(key, entry, before=State.OPEN)

    def _add(self, key: str, *, upstream: str, model: str) -> _Entry:
        if len(self._entries) >= _MAX_BREAKERS:
            self._forget(next(iter(self._entries)))
        entry = self._entries[key] = _Entry(breaker=Breaker(), upstream=upstream, model=metrics.model_label(model))
        return entry

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key)
        _measure(entry, before=entry.breaker.shared.state(_now()), after=State.CLOSED)

    # -- exchange ------------------------------------------------------------------------------------------------------

    def _changed(self, key: str, entry: _Entry, *, before: State) -> None:
        _measure(entry, before=before, after=entry.breaker.state(_now()))
        self._notifier.notify(orjson.dumps({"key": key, **entry.document}))
        # The follower writes the change to Redis.
        self._wake.set()
        self._start()

    def _start(self) -> None:
        if self._follower is None or self._follower.done():
            self._is_synchronized.clear()
            self._used_at = time.monotonic()
            task = asyncio.get_running_loop().create_task(self._exchange(), context=wait_limit.unrelated())
            self._follower = task

    async def _follow(self) -> None:
        """Keep the states up to date from now on. At first, wait for those of other processes."""
        self._used_at = time.monotonic()
        self._start()
        if not self._is_synchronized.is_set():
            await wait_within(self._is_synchronized, _PATIENCE_SECONDS)

    async def _exchange(self) -> None:
        with loop_notifications().listening(_CHANNEL, self._wake, self._receive):
            while self._is_used():
                self._wake.clear()
                try:
                    await self._synchronize()
                    await self._loads.report(loop_client())
                    self._has_redis = True
                except (redis.RedisError, OSError) as error:
                    _ERRORS.inc()
                    # Logged once per outage.
                    if self._has_redis:
                        logger.warning("the states of targets are not shared: %s", error)
                    self._has_redis = False
                except Exception:
                    # Another version may have written states that this one does not understand.
                    logger.exception("the states of targets are not shared")
                self._is_synchronized.set()
                await wait_within(self._wake, _POLL_SECONDS)

    def _is_used(self) -> bool:
        is_idle = time.monotonic() - self._used_at >= _IDLE_SECONDS
        # A stream may take longer than that.
        return not is_idle or self._wake.is_set() or bool(target_loads.all_in_flight())

    def _receive(self, message: bytes) -> None:
        document = orjson.loads(message)
        self._adopt(document["key"], document)

    def _adopt(self, key: str, document: Mapping[str, Any]) -> None:
        snapshot = _snapshot(document)
        entry = self._entries.get(key)
        if entry is None:
            if not snapshot.openings:
                return
            entry = self._add(key, upstream=document["upstream"], model=document["model"])
        before = entry.breaker.state(_now())
        if entry.breaker.adopt(snapshot):
            _measure(entry, before=before, after=entry.breaker.state(_now()))

    async def _synchronize(self) -> None:
        """Adopt the newer states of Redis, and write this process's newer ones."""
        client, oldest = loop_client(), _now() - _FORGET_SECONDS
        stored = _documents(await client.hgetall(_STATES))
        outdated = [key for key, document in stored.items() if document["changed_at"] <= oldest]
        for key in stored.keys() - {*outdated}:
            self._adopt(key, stored[key])
        for key in [key for key, entry in self._entries.items() if 0 < entry.breaker.shared.changed_at <= oldest]:
            self._forget(key)
        newer = {
            key: entry
            for key, entry in self._entries.items()
            if entry.breaker.shared.changed_at > stored.get(key, _NOTHING)["changed_at"]
        }
        if newer or outdated:
            await _write(client, newer, outdated)

    async def _claim_probe(self, key: str) -> bool:
        """Return whether this process may probe a target. Without Redis, each process decides for itself."""
        if not self._has_redis:
            return True
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                expiry = int(PROBE_SECONDS * 1000)
                return bool(await loop_client().set(_PROBES + key, b"", nx=True, px=expiry))
        except (redis.RedisError, OSError) as error:
            _ERRORS.inc()
            logger.warning("a probe cannot be claimed: %s", error)
            return True


_NOTHING = {"changed_at": 0.0}


async def _write(client: Any, newer: Mapping[str, _Entry], outdated: Collection[str]) -> None:
    pipeline = client.pipeline(transaction=False)
    for key, entry in newer.items():
        breaker = entry.breaker
        pipeline.hset(_STATES, key, orjson.dumps(entry.document))
        milliseconds = int(1000 * (breaker.seconds_until_probe(_now()) - _TOLERANCE_SECONDS))
        match breaker.state(_now()):
            case State.OPEN if milliseconds > 0:
                pipeline.set(_PROBES + key, b"", px=milliseconds)
            case State.HALF_OPEN if breaker.is_probing and milliseconds > 0:
                # The probe was begun without Redis.
                pipeline.set(_PROBES + key, b"", nx=True, px=milliseconds)
            case State.CLOSED:
                pipeline.delete(_PROBES + key)
    if outdated:
        pipeline.hdel(_STATES, *outdated)
    pipeline.expire(_STATES, int(_FORGET_SECONDS))
    await pipeline.execute()


loop_breakers = PerLoop(Breakers)
"""Returns the circuit breakers of the running event loop."""


def target_key(upstream_id: str, upstream_model: str) -> str:
    """Return the key of the target that an upstream and its name for a model are."""
    return f"{upstream_id}:{upstream_model}"


def _key_of(route: Route) -> str:
    return target_key(route.upstream.id, route.upstream_model)


def shared_states() -> dict[str, Snapshot] | None:
    """Return the states of targets by `target_key`, for commands; None if Redis cannot be reached."""
    try:
        with blocking_client(settings.REDIS_URL) as client:
            stored: Any = client.hgetall(_STATES)
    except redis.RedisError:
        return None
    return {key: _snapshot(document) for key, document in _documents(stored).items()}


def _now() -> float:
    return shared_now().timestamp()


def _documents(stored: Mapping[bytes, bytes]) -> dict[str, dict[str, Any]]:
    return {key.decode(): orjson.loads(value) for key, value in stored.items()}


def _snapshot(document: Mapping[str, Any]) -> Snapshot:
    reason = document["reason"]
    return Snapshot(
        openings=document["openings"],
        open_until=document["open_until"],
        reason=None if reason is None else Reason(reason),
        changed_at=document["changed_at"],
    )


def _measure(entry: _Entry, *, before: State, after: State) -> None:
    was_open, is_open = before is not State.CLOSED, after is not State.CLOSED
    if was_open != is_open:
        # Counted, as several models of a wildcard have the same label.
        metrics.TARGET_OPEN.labels(entry.upstream, entry.model).inc(1 if is_open else -1)
