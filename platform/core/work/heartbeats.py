"""Heartbeats: each process writes a note to Redis every few seconds, which expires shortly after the process ends.

They are for display only. Without Redis the list of processes is unknown and everything else keeps working.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import redis
from django.conf import settings

from core.clock import now
from core.telemetry import metrics
from core.work.notifications import blocking_client

logger = logging.getLogger(__name__)
BEAT_SECONDS = 5.0
# Three beats: one that is late or lost does not make a process disappear.
_EXPIRY_SECONDS = 16
_PREFIX = "platform:process:"
_MAX_PROCESSES = 1000

Facts = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Latest note of a process. `facts` are values specific to its kind, for example a worker's load."""

    kind: str
    name: str
    version: str
    started_at: datetime
    beat_at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)


def start(kind: str, *, name: str = "", facts: Facts = dict) -> None:
    """Start sending heartbeats of this process from a daemon thread; `facts` is called for each of them."""
    name = name or f"{socket.gethostname()}:{os.getpid()}"
    # A thread, as the scheduler process has no event loop.
    threading.Thread(target=_beat, args=(kind, name, facts), name="heartbeat", daemon=True).start()


def forget(kind: str, pid: int) -> None:
    """Remove the note of a process of this host that has died, so that it is not shown until it expires."""
    with suppress(redis.RedisError), blocking_client(settings.REDIS_URL) as client:
        for key in client.scan_iter(f"{_PREFIX}{kind}:{socket.gethostname()}:{pid}:*", count=_MAX_PROCESSES):
            client.delete(key)


def live_processes() -> list[Heartbeat] | None:
    """Return the processes with a recent heartbeat, by kind and name; None if Redis cannot be reached."""
    try:
        with blocking_client(settings.REDIS_URL) as client:
            # SCAN, as KEYS would block Redis while it walks through all of its keys.
            found = client.scan_iter(f"{_PREFIX}*", count=_MAX_PROCESSES)
            keys = [key for _, key in zip(range(_MAX_PROCESSES), found, strict=False)]
            notes = client.mget(keys) if keys else []
    except redis.RedisError:
        return None
    beats = []
    for values in (json.loads(note) for note in notes if note):
        moments = {name: datetime.fromtimestamp(values[name], UTC) for name in ("started_at", "beat_at")}
        beats.append(Heartbeat(**{**values, **moments}))
    return sorted(beats, key=lambda beat: (beat.kind, beat.name))


def _beat(kind: str, name: str, facts: Facts) -> None:
    started_at, client, is_away = now().timestamp(), blocking_client(settings.REDIS_URL), False
    while True:
        note = {
            "kind": kind,
            "name": name,
            "version": settings.VERSION,
            "started_at": started_at,
            "beat_at": now().timestamp(),
            "facts": dict(facts()),
        }
        try:
            client.set(f"{_PREFIX}{kind}:{name}", json.dumps(note), ex=_EXPIRY_SECONDS)
            is_away = False
        except redis.RedisError as error:
            metrics.REDIS_ERRORS.labels("heartbeats").inc()
            if not is_away:
                logger.warning("heartbeats cannot be sent: %s", error)
            is_away = True
        time.sleep(BEAT_SECONDS)
