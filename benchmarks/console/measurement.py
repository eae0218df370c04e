"""A signed-in user or an API key that requests pages, and the figures of a page."""

import http.client
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from urllib.parse import urlsplit

from benchmarks.load import Target, cpu_seconds
from benchmarks.stack import statements

WARM = 20
"""Warm requests of a page."""
EXPORT = "/export/"
"""Part of the paths of files that contain all rows of a list."""
# Pages of other users, and actions that only a form posts.
_NO_PAGES = {http.client.FORBIDDEN, http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Times of a page for a user: of the first request and of the later ones, with CPU time and queries per request."""

    page: str
    who: str
    first_ms: float
    warm_ms: Sequence[float]
    cpu_ms: float
    queries: int
    slowest_path: str

    @property
    def typical(self) -> float:
        """Median of the warm requests."""
        return statistics.median(self.warm_ms)

    @property
    def fastest(self) -> float:
        """The fastest of the warm requests."""
        return min(self.warm_ms)

    @property
    def p95(self) -> float:
        """The 95th percentile of the warm requests: 19 of 20 are as fast."""
        return sorted(self.warm_ms)[math.ceil(0.95 * len(self.warm_ms)) - 1]

    @property
    def slowest(self) -> float:
        """The slowest of the warm requests."""
        return max(self.warm_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The measured web process with its database, and a superuser's connection string."""

    web: Target
    admin: str

    def usage(self) -> tuple[float, int]:
        """Return the seconds of CPU time and the number of statements so far."""
        pids = [pid for pid in (self.web.pid, self.web.database_pid) if pid is not None]
        return sum(map(cpu_seconds, pids)), statements(self.admin)[0]


class Browser:
    """A user with one connection. `headers` are the cookie of a session, or an API key."""

    def __init__(self, subject: Subject, *, headers: Mapping[str, str], who: str) -> None:
        self.who = who
        self._subject = subject
        self._headers = headers
        self._connection = http.client.HTTPConnection(urlsplit(subject.web.url).netloc, timeout=120)

    def get(self, path: str) -> tuple[int, float]:
        """Return the status and the milliseconds to the last byte, or to the first byte of an export."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        if EXPORT in path:
            answer.read(1)
            elapsed = 1000 * (time.perf_counter() - began)
            answer.read()
            return answer.status, elapsed
        answer.read()
        return answer.status, 1000 * (time.perf_counter() - began)

    def time(self, name: str, paths: Sequence[str]) -> Timed | None:
        """Measure a page at each of its paths. Return None if the user cannot access it with GET."""
        first: list[float] = []
        for path in paths:
            status, elapsed = self.get(path)
            if status in _NO_PAGES:
                return None
            if status not in {http.client.OK, http.client.FOUND}:
                raise RuntimeError(f"{name} ({path}) was answered {status} to {self.who}")
            first.append(elapsed)
        cpu, before = self._subject.usage()
        # Each path twice at least, so that a path that is always slow determines the 95th percentile.
        number = max(WARM, 2 * len(paths))
        warm = [(self.get(path)[1], path) for path in islice(cycle(paths), number)]
        cpu_after, after = self._subject.usage()
        return Timed(
            page=name,
            who=self.who,
            first_ms=max(first),
            warm_ms=[elapsed for elapsed, _ in warm],
            cpu_ms=1000 * (cpu_after - cpu) / number,
            queries=math.ceil((after - before) / number),
            slowest_path=max(warm)[1],
        )
