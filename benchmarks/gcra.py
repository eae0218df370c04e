"""`python -m benchmarks gcra`: random sequences of requests, decided by our script and by the GCRA of throttled-py.

Both run in one Valkey and see the same times: our script takes the time as an argument, and the script of throttled-py
runs with a `redis` object that answers TIME with it. Where they differ, exact arithmetic decides: throttled-py stores
times as floating point numbers, so it may be wrong about a request within a microsecond of the time from which it is
allowed. The exit code is 1 if our script ever differs from the exact result, or if throttled-py differs from our script
for another reason.
"""

import random
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import redis
import throttled
from throttled.rate_limiter.gcra import RedisLimitAtomicActionSpec

from benchmarks.stack import running_servers

OURS = (Path(__file__).parent.parent / "platform" / "limits" / "script.lua").read_text()
# The keys of throttled-py expire in real time, whereas the times of the sequences pass at once.
THEIRS = f"""
    local real, at = redis, {{ARGV[4], ARGV[5]}}
    local redis = {{call = function(name, ...)
        if name == 'TIME' then return at end
        if name == 'SET' then return real.call('SET', KEYS[1], string.format('%.17g', (select(2, ...))), 'EX', 600) end
        return real.call(name, ...)
    end}}
    {RedisLimitAtomicActionSpec.SCRIPTS}
"""
MINUTE = 60_000_000
_BATCH = 200
# In microseconds: our times are rounded up to whole microseconds, and those of throttled-py are printed with 14 digits.
_TOLERANCE = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. The times are microseconds."""

    allowed: bool
    remaining: int
    reset: float
    wait: float

    def is_like(self, other: "Answer") -> bool:
        """Return whether both answers are equal except for the rounding of times."""
        return (self.allowed, self.remaining) == (other.allowed, other.remaining) and max(
            abs(self.reset - other.reset), abs(self.wait - other.wait)
        ) <= _TOLERANCE


@dataclass(slots=True)
class ExactRate:
    """GCRA with fractions: the theoretical arrival time, and the answers that follow from it."""

    limit: int
    arrival: Fraction = field(default_factory=Fraction)

    def ask(self, now: int, cost: int) -> tuple[Answer, Fraction]:
        """Decide a request, and return its distance from the time from which it is allowed."""
        interval = Fraction(MINUTE, self.limit)
        arrival = max(self.arrival, Fraction(now))
        late = arrival + cost * interval - now - self.limit * interval
        if late <= 0:
            self.arrival = arrival = arrival + cost * interval
        ahead = arrival - now
        remaining = floor((self.limit * interval - ahead) / interval)
        return Answer(late <= 0, remaining, ceil(ahead), ceil(max(late, Fraction(0)))), abs(late)


@dataclass(slots=True)
class Agreement:
    """The numbers of sequences and requests that were compared, and the differences that were found."""

    sequences: int = 0
    requests: int = 0
    refused: int = 0
    # `rounded` counts the answers of throttled-py that differ within a microsecond of the exact boundary. `reversed`
    # counts those of them that allow a request that should be refused, or refuse one that should be allowed.
    rounded: int = 0
    reversed: int = 0
    wrong: list[str] = field(default_factory=list)


Sequences = list[tuple[int, list[tuple[int, int]]]]


def make_sequences(dice: random.Random, number: int, *, steps: int) -> Sequences:
    """Return sequences: a limit per minute, and requests with their time in microseconds and their cost."""
    made = []
    for _ in range(number):
        limit = dice.choice((1, 2, 3, 5, 7, 10, 60, 100, 333, 1000, 4096, 90_000, dice.randint(1, 1_000_000)))
        interval, at = MINUTE / limit, 1_780_000_000_000_000 + dice.randrange(10**12)
        requests = []
        for _ in range(dice.randint(1, steps)):
            cost = min(limit, dice.choice((1, 1, 1, 2, limit, dice.randint(1, limit), max(1, limit // 3))))
            requests.append((at, cost))
            # At once, after a part of the interval or of the window, after exactly one interval, after a pause.
            at += dice.choice(
                (
                    0,
                    dice.randrange(1, 1000),
                    int(interval * dice.random()),
                    round(interval),
                    dice.randrange(MINUTE),
                    MINUTE,
                )
            )
        made.append((limit, requests))
    return made


def compare(client: Any, *, sequences: int, seed: int, steps: int = 16, seconds: float = float("inf")) -> Agreement:
    """Compare both on this many sequences, or on as many as the time limit allows."""
    dice, agreement, stops_at = random.Random(seed), Agreement(), time.monotonic() + seconds
    ours, theirs = client.script_load(OURS), client.script_load(THEIRS)
    while agreement.sequences < sequences and time.monotonic() < stops_at:
        batch = make_sequences(dice, min(_BATCH, sequences - agreement.sequences), steps=steps)
        pipeline = client.pipeline(transaction=False)
        for limit, requests in batch:
            name = f"gcra:{uuid4().hex}"
            quota = throttled.per_min(limit, burst=limit)
            for at, cost in requests:
                rate = {"limit": limit, "period": MINUTE, "tick": 1, "cost": cost}
                document = {"op": "reserve", "stateful": False, "now": at, "rates": [rate], "want": 0, "least": 0}
                document |= {"counts": [], "budgets": [], "id": "", "zone": "UTC", "after": -1}
                pipeline.evalsha(ours, 4, "-", "-", "-", f"{name}:ours", orjson.dumps(document))
                interval, (second, micro) = quota.emission_interval, divmod(at, 1_000_000)
                pipeline.evalsha(theirs, 1, f"{name}:theirs", repr(interval), limit, cost, second, micro)
        replies = iter(pipeline.execute())
        for limit, requests in batch:
            pairs = [(_ours(next(replies).split()), _theirs(next(replies))) for _ in requests]
            _judge(agreement, limit, requests, pairs)
    return agreement


def _judge(
    agreement: Agreement, limit: int, requests: Sequence[tuple[int, int]], pairs: Sequence[tuple[Answer, Answer]]
) -> None:
    agreement.sequences += 1
    exact = ExactRate(limit)
    for (at, cost), (ours, theirs) in zip(requests, pairs, strict=True):
        right, distance = exact.ask(at, cost)
        agreement.requests += 1
        agreement.refused += not right.allowed
        told = f"limit {limit}, cost {cost}, at {at}: exact {right}, ours {ours}, throttled-py {theirs}"
        if not ours.is_like(right):
            agreement.wrong.append(told)
            return
        if not theirs.is_like(ours):
            interval = Fraction(MINUTE, limit)
            # For the remaining amount, the boundary is a whole number of intervals.
            ahead = (exact.arrival - at) / interval
            if min(distance, abs(ahead - round(ahead)) * interval) > 1:
                agreement.wrong.append(told)
                return
            agreement.rounded += 1
            if theirs.allowed != ours.allowed:
                # From here on, their states differ.
                agreement.reversed += 1
                return


def _ours(reply: list[bytes]) -> Answer:
    if reply[0] == b"ok":
        _, _, _, _, _, left, reset = reply
        return Answer(allowed=True, remaining=int(left), reset=int(reset), wait=0)
    left, reset = reply[-2:]
    return Answer(allowed=False, remaining=int(left), reset=int(reset), wait=int(reply[4]))


def _theirs(reply: list[Any]) -> Answer:
    limited, remaining, reset, wait = reply
    return Answer(not limited, remaining, float(reset) * 1e6, float(wait) * 1e6)


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Compare and print the figures. Return 1 if there is a difference that is not rounding of throttled-py."""
    parser = ArgumentParser(prog="python -m benchmarks gcra")
    parser.add_argument("--sequences", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=18)
    options = parser.parse_args(arguments)
    with running_servers(directory) as servers, redis.Redis.from_url(servers.environment["REDIS_URL"]) as client:
        began = time.monotonic()
        agreement = compare(client, sequences=options.sequences, seed=options.seed)
    print(f"{agreement.sequences:,} sequences with {agreement.requests:,} requests, {agreement.refused:,} refused,")
    print(f"in {time.monotonic() - began:.0f} s, seed {options.seed}.")
    print(f"{agreement.rounded:,} answers of throttled-py differ by its rounding, within 1 µs of the exact boundary:")
    print(f"{agreement.reversed:,} in whether the request is allowed, the others in what remains.")
    print(f"{len(agreement.wrong)} other differences.")
    for each in agreement.wrong[:10]:
        print(each)
    return 1 if agreement.wrong else 0
