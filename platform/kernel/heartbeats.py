"""Which processes of the platform live: each writes a note of itself to Redis every few seconds, which is gone soon
after it. For people who look, and for nothing else: where Redis is away nobody knows, and everything works on.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import redis
import redis.retry
from django.conf import settings
from redis.backoff import NoBackoff

from kernel.clock import now

logger = logging.getLogger(__name__)
BEAT_SECONDS = 5.0
_KEPT_SECONDS = 16
_TIMEOUT_SECONDS = 0.5
_PREFIX = "platform:process:"
_MOST = 1000

Facts = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a process last said of itself."""

    kind: str
    name: str
    version: str
    started_at: datetime
    beat_at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)


def begin(kind: str, *, name: str = "", facts: Facts = dict) -> None:
    """Tell of this process from now on, in a thread of its own; `facts` is asked each time."""
    name = name or f"{socket.gethostname()}:{os.getpid()}"
    work = threading.Thread(target=_beat, args=(kind, name, facts), name="heartbeat", daemon=True)
    work.start()


def known() -> list[Heartbeat] | None:
    """The processes that live, by kind and name; None where Redis does not say."""
    try:
        with _client() as client:
            keys = [key for _, key in zip(range(_MOST), client.scan_iter(f"{_PREFIX}*", count=_MOST), strict=False)]
            notes = client.mget(keys) if keys else []
    except redis.RedisError:
        return None
    return sorted((_read(note) for note in notes if note), key=lambda beat: (beat.kind, beat.name))


def _beat(kind: str, name: str, facts: Facts) -> None:
    started_at, client, is_away = now().timestamp(), _client(), False
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
            client.set(f"{_PREFIX}{kind}:{name}", json.dumps(note), ex=_KEPT_SECONDS)
            is_away = False
        except redis.RedisError as error:
            if not is_away:
                logger.warning("nobody is told that this process lives: %s", error)
            is_away = True
        time.sleep(BEAT_SECONDS)


def _read(note: bytes) -> Heartbeat:
    said = json.loads(note)
    for name in ("started_at", "beat_at"):
        said[name] = datetime.fromtimestamp(said[name], UTC)
    return Heartbeat(**said)


def _client() -> Any:
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), 1),
    )
