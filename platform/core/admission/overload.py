"""Start of requests in a fair order, and refusal of new work that would wait too long for its start.

Everything a request does before it waits for its model competes for the event loop, the database threads and the next
commit, in the order of arrival. So only a limited number of requests may be starting; the others wait for their turn,
and each turn goes to the team with the fewest starting requests in relation to its weight. The limit matters only while
several teams send requests: then it follows the load of the event loop. Teams with little demand are not limited. If
the loop is late nevertheless while such teams send requests, the requests of other teams start with pauses in between.

How long a new request will wait follows from Little's law: the number of requests that wait, divided by the rate at
which they have started in the last seconds. The estimate includes every wait: for the event loop, threads and the
database. A request that waits for its model has started, so slow models do not count. Only teams with at least the
average number of waiting requests are refused, so one team's load is not another's overload.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable
from contextvars import ContextVar, Token

from django.conf import settings

from core.admission.request_bodies import REJECTED
from core.errors import Overloaded, retry_headers, shutting_down
from core.http.asgi import App, Receive, Scope, Send, header
from core.http.endpoints import asks_for_stream, endpoint_in
from core.load.draining import draining
from core.load.load_limit import LoadLimit
from core.telemetry import metrics

_BEAT_SECONDS = 0.1
_LAG_SECONDS = 10.0
# Starts are counted over this time, and an overload begins when the queue was too long for this time. That is long
# enough for the commits of several batches, and to accept a burst of a thousand connections.
_WINDOW_SECONDS = 2.0
# An overload ends after this time without a refusal. If it ended as soon as its queue is short, the next wave of
# requests would be accepted as a burst. At twice the capacity of the mixed load, up to 455 requests waited with a limit
# of 94; with this constant, 70 waited with a limit of 64.
_CALM_SECONDS = 10.0
# Bounds of the number of requests that may be starting while several teams send requests. A group commit takes 64
# changes, so a higher maximum gains nothing. Below 1, there are pauses between the requests of large teams.
_LEAST_STARTING, _MOST_STARTING = 0.1, 64
_LONGEST_PAUSE = 0.1
# Starts count for about this time, with a decreasing weight, until a team's sum is no more than `_FORGOTTEN`.
_RECENT_SECONDS, _FORGOTTEN = 2.0, 0.1
# A team is small if its demand is at most this part of its share, by weight, of the demand of all teams.
_SMALL_PART = 0.5
# A team that is alone is not limited by the load of the loop, unless another team has sent a request within this time.
_SHARED_SECONDS = 60.0
# Spread, so that the refused clients do not come back at the same moment.
_RETRY_SECONDS = (1.0, 3.0)


# Requests whose key is not known yet count as requests of this team.
_UNKNOWN = ""
_MAX_KEYS = 10_000


class _Work:
    """A request that waits until its run has started, or until the end of the block."""

    # Not a generator of `contextlib`, which takes 0.3 KB more per open stream.
    __slots__ = ("_admission", "_token", "has_turn", "is_waiting", "team_id", "turn_began")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.team_id = _UNKNOWN
        self.is_waiting = True
        self.has_turn = False
        self.turn_began = 0.0

    def __enter__(self) -> None:
        self._token = self._admission.begin(self)

    def __exit__(self, *_: object) -> None:
        self._admission.end(self, self._token)


class Admission:
    """The requests that wait in this process, the order of their starts, and the decision to accept another one."""

    def __init__(self) -> None:
        self._waiting = 0
        # Without requests of keys that are not known yet. Plain dictionaries, because a `Counter` takes three times as
        # long.
        self._waiting_by_team: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        # By the hash of the header, so that no secret is kept.
        self._teams_by_key: dict[int, str] = {}
        self._starting = 0
        self._starting_by_team: dict[str, int] = {}
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        # A team's demand is its recent starts plus its waiting requests; `_share` is the mean demand per weight.
        self._recent: dict[str, float] = {}
        self._share = 0.0
        self._has_small = False
        # Set during a pause of large teams.
        self._resuming: asyncio.TimerHandle | None = None
        self._limit = LoadLimit(least=_LEAST_STARTING, most=_MOST_STARTING)
        # The team of the last request, and the last time when it differed from the team of the request before.
        self._last_team, self._last_change = "", -_SHARED_SECONDS
        self._most_waiting = 0
        self._ended = 0
        # The time of each beat in the window, with the number of requests whose wait had ended until then.
        self._beats: deque[tuple[float, int]] = deque()
        self._last_short, self._last_refusal = 0.0, -_CALM_SECONDS
        self._lags: deque[float] = deque(maxlen=round(_LAG_SECONDS / _BEAT_SECONDS))
        self._is_overloaded = False
        self._tasks: list[asyncio.Task[None]] = []
        self._current: ContextVar[_Work | None] = ContextVar("_current", default=None)

    def start(self) -> None:
        """Measure the running event loop from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat()), loop.create_task(self._limit.follow())]

    @property
    def longest_lag_ms(self) -> float:
        """The longest delay of the event loop in the last ten seconds, in milliseconds."""
        return round(1000 * max(tuple(self._lags), default=0.0), 1)

    # -- refusal -------------------------------------------------------------------------------------------------------

    def team_of(self, authorization: str) -> str:
        """Return the team of a key that was used before, or an empty string."""
        return self._teams_by_key.get(hash(authorization), _UNKNOWN)

    @property
    def is_strained(self) -> bool:
        """Return true if a new request of some teams would wait too long."""
        return self._is_overloaded and self._waiting >= self._most_waiting

    def is_full(self, team_id: str) -> bool:
        """Return true if a new request would wait too long and its team already has its share of waiting requests."""
        if not self.is_strained:
            return False
        if not self._waiting:
            return True
        waiting = {_UNKNOWN: self._waiting - sum(self._waiting_by_team.values()), **self._waiting_by_team}
        weights = sum(self._weights.get(team, 1) for team, number in waiting.items() if number)
        return (waiting.get(team_id, 0) + 1) * weights >= self._waiting * self._weights.get(team_id, 1)

    def check(self, team_id: str) -> None:
        """Raise `Overloaded` if a new request would wait too long."""
        if self.is_full(team_id):
            raise self.refusal()

    def refusal(self) -> Overloaded:
        """Return the error of a request that is refused because of `is_full`."""
        self._last_refusal = asyncio.get_running_loop().time()
        headers = retry_headers(random.uniform(*_RETRY_SECONDS))  # noqa: S311 - no secret
        return Overloaded("The server is currently overloaded. Please try again later.", headers=headers)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def waiting(self) -> _Work:
        """Count a request as waiting until its run has started, at most until the end of `with admission.waiting()`."""
        return _Work(self)

    def begin(self, work: _Work) -> "Token[_Work | None]":
        """Begin to count a request as waiting; called by the block of `waiting`."""
        self._waiting += 1
        return self._current.set(work)

    def end(self, work: _Work, token: "Token[_Work | None]") -> None:
        """Stop counting a request as waiting; called by the block of `waiting`."""
        self._current.reset(token)
        self._end(work)

    def started(self) -> None:
        """Record that the current request has started: from now on it waits for nothing but its model."""
        if (work := self._current.get()) is not None:
            self._end(work)

    def _end(self, work: _Work) -> None:
        if not work.is_waiting:
            return
        work.is_waiting = False
        self._waiting -= 1
        self._ended += 1
        if work.team_id:
            _count_down(self._waiting_by_team, work.team_id)
        if work.has_turn:
            work.has_turn = False
            self._pause(work)
            self._return_turn(work.team_id)

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def turn(self, *, team_id: str, weight: int, authorization: str) -> None:
        """Wait until the current request, whose caller is known now, may start. Raises `Overloaded`.

        Its turn ends when its run has started, or with the block of `waiting`.
        """
        work = self._current.get()
        if work is None or not work.is_waiting or work.has_turn:
            return
        self._identify(work, team_id, weight, authorization)
        if team_id in self._queues or not self._may_start(team_id):
            queue = self._queues.setdefault(team_id, deque())
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._return_turn(team_id)
                elif place in queue:
                    queue.remove(place)
                    if not queue:
                        self._queues.pop(team_id, None)
                raise
        else:
            self._take_turn(team_id)
        work.has_turn, work.turn_began = True, time.monotonic()

    def _identify(self, work: _Work, team_id: str, weight: int, authorization: str) -> None:
        if team_id != self._last_team:
            if self._last_team:
                self._last_change = asyncio.get_running_loop().time()
            self._last_team = team_id
        self._weights[team_id] = weight
        key = hash(authorization)
        if key not in self._teams_by_key:
            if len(self._teams_by_key) >= _MAX_KEYS:
                self._teams_by_key.clear()
                self._weights = {team: self._weights[team] for team in (*self._waiting_by_team, team_id)}
            self._teams_by_key[key] = team_id
            # The request was admitted when its key was unknown. It must not count itself among the waiting requests.
            self._waiting -= 1
            is_full = self.is_full(team_id)
            self._waiting += 1
            if is_full:
                raise self.refusal()
        self._waiting_by_team[team_id] = self._waiting_by_team.get(team_id, 0) + 1
        work.team_id = team_id

    def _may_start(self, team_id: str) -> bool:
        # Otherwise several requests of a small team would wait for the requests of a large team.
        if self._is_small(team_id):
            return self._starting < _MOST_STARTING
        if self._resuming is not None:
            return False
        # A team without a starting request need not wait for the requests of other teams.
        is_alone = asyncio.get_running_loop().time() - self._last_change > _SHARED_SECONDS
        is_limited = team_id in self._starting_by_team and not is_alone
        return self._starting < (self._limit.value if is_limited else _MOST_STARTING)

    def _pause(self, work: _Work) -> None:
        """Let the event loop catch up before the next request of a large team, if small teams send requests too."""
        pause = self._limit.pause
        if pause and self._has_small and self._resuming is None and not self._is_small(work.team_id):
            seconds = min(pause * (time.monotonic() - work.turn_began), _LONGEST_PAUSE)
            self._resuming = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._pass_on()

    def _is_small(self, team_id: str) -> bool:
        """Return true for a team with so little demand that its requests hardly delay the requests of other teams."""
        demand = self._recent.get(team_id, 0.0) + self._waiting_by_team.get(team_id, 0)
        return demand <= _SMALL_PART * self._share * self._weights.get(team_id, 1)

    def _take_turn(self, team_id: str) -> None:
        self._recent[team_id] = self._recent.get(team_id, 0.0) + 1
        self._starting += 1
        self._starting_by_team[team_id] = self._starting_by_team.get(team_id, 0) + 1

    def _return_turn(self, team_id: str) -> None:
        self._starting -= 1
        _count_down(self._starting_by_team, team_id)
        self._pass_on()

    def _rank(self, team_id: str) -> tuple[bool, float]:
        # First the team with the fewest starting requests; among equals, the one that has waited longest for a turn.
        starting = self._starting_by_team.get(team_id, 0) + 1
        return not self._is_small(team_id), starting / self._weights.get(team_id, 1)

    def _pass_on(self) -> None:
        while self._queues:
            first = min(self._queues, key=self._rank)
            if not self._may_start(first):
                return
            # The team goes to the end of the rotation.
            queue = self._queues.pop(first)
            place = queue.popleft()
            if queue:
                self._queues[first] = queue
            if not place.done():
                self._take_turn(first)
                place.set_result(None)

    # -- measurement ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            now = loop.time()
            lag = max(0.0, now - due)
            metrics.EVENT_LOOP_LAG.observe(lag)
            self._lags.append(lag)
            self._update(now)
            self._forget()

    def _forget(self) -> None:
        kept = 1 - _BEAT_SECONDS / _RECENT_SECONDS
        self._recent = {team: kept * starts for team, starts in self._recent.items() if starts > _FORGOTTEN}
        teams = self._recent.keys() | self._waiting_by_team.keys()
        weights = sum(self._weights.get(team, 1) for team in teams)
        demand = sum(self._recent.values()) + sum(self._waiting_by_team.values())
        self._share = demand / weights if weights else 0.0
        self._has_small = any(map(self._is_small, teams))

    def _update(self, now: float) -> None:
        self._beats.append((now, self._ended))
        while now - self._beats[0][0] > _WINDOW_SECONDS and len(self._beats) > 2:
            self._beats.popleft()
        began, ended = self._beats[0]
        rate = (self._ended - ended) / max(now - began, _BEAT_SECONDS)
        self._most_waiting = max(settings.OVERLOAD_MIN_REQUESTS, int(rate * settings.OVERLOAD_DELAY_MS / 1000))
        if self._waiting < self._most_waiting:
            self._last_short = now
        is_standing = now - self._last_short > _WINDOW_SECONDS
        self._is_overloaded = is_standing or now - self._last_refusal < _CALM_SECONDS


def _count_down(counter: dict[str, int], team_id: str) -> None:
    # Teams without requests are not kept.
    counter[team_id] -= 1
    if not counter[team_id]:
        del counter[team_id]


admission = Admission()


def with_refusal(guard: App) -> App:
    """Wrap a `BodyGuard` so that it refuses requests with new work while they would wait too long.

    While the process shuts down, it refuses all such requests, and also new readers of streams. Requests are refused
    before their body and key are read. The guard sends the error so that clients receive it while they are sending.
    """

    def refusing(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if REJECTED not in scope and (draining.refuses or admission.is_strained):
            endpoint = endpoint_in(scope)
            is_work = endpoint is not None and endpoint.is_work
            if draining.refuses and (is_work or asks_for_stream(scope)):
                scope[REJECTED] = shutting_down()
            elif is_work and admission.is_full(admission.team_of(header(scope, b"authorization"))):
                scope[REJECTED] = admission.refusal()
        return guard(scope, receive, send)

    return refusing


def counted(app: App) -> App:
    """Wrap an app so that its requests count as waiting until their run has started."""

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        with admission.waiting():
            await app(scope, receive, send)

    return waiting
