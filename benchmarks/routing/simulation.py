"""Simulation of requests to a model with several targets. The product's own code chooses the target of each request."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from benchmarks.routing.servers import PromptCache, Request, Server, p99
from tenants.directory import Route, TargetLoads, UpstreamEndpoint, with_affinity

TARGETS = 8
_UTILIZATION = 0.7
# Each web process knows only its own requests. Between the choice and the request, the platform uses the database.
_PROCESSES, _DELAY = 3, 0.02
_KEYS = 10_000


def make_targets(number: int) -> list[Route]:
    """Return targets of the same priority and weight."""
    upstreams = [UpstreamEndpoint(id=f"upst_{n}", base_url=f"http://10.0.0.{n}/v1", api_key="") for n in range(number)]
    return [Route(model="m", upstream_model="m", upstream=upstream) for upstream in upstreams]


class Platform:
    """Web processes of the platform in front of simulated servers.

    Of the conversations, every second one continues with `previous_response_id`, the others have a `prompt_cache_key`.
    """

    def __init__(self, servers: Sequence[Server], *, seed: int) -> None:
        self._dice = random.Random(seed)
        self._route = Route.through(make_targets(len(servers)))
        self._servers = {
            target.upstream.id: server for target, server in zip(self._route.targets, servers, strict=True)
        }
        self._now = 0.0
        self._loads = [TargetLoads(clock=lambda: self._now) for _ in range(_PROCESSES)]
        self._predecessors: dict[int, str] = {}

    def serve(self, requests: Sequence[Request]) -> list[float]:
        """Return the response time of each request."""
        seconds = [0.0] * len(requests)
        # Time, number of the request, whether it ends or is sent, its target, the loads of its process, its beginning.
        waiting: list[tuple[float, int, bool, Route, TargetLoads, float]] = []

        def advance(to: float) -> None:
            while waiting and waiting[0][0] <= to:
                self._now, number, ends, target, loads, began = heappop(waiting)
                if ends:
                    loads.end(target, began, is_complete=True)
                    continue
                end = self._servers[target.upstream.id].serve(requests[number], self._now)
                seconds[number] = end - requests[number].at
                heappush(waiting, (end, number, True, target, loads, loads.begin(target)))
            self._now = to

        for number, request in enumerate(requests):
            advance(request.at)
            loads = self._loads[int(request.draw * _PROCESSES)]
            target = self._choose(request, loads)
            heappush(waiting, (self._now + _DELAY, number, False, target, loads, 0.0))
        advance(float("inf"))
        return seconds

    def _choose(self, request: Request, loads: TargetLoads) -> Route:
        key, conversation = "", request.conversation
        if conversation >= 0 and conversation % 2:
            key = f"conversation {conversation}"
        previous = "" if key else self._predecessors.get(conversation, "")
        target = with_affinity(self._route, key=key, upstream_id=previous, loads=loads, dice=self._dice)
        if conversation >= 0:
            self._predecessors[conversation] = target.upstream.id
        return target


# -- targets of different speed ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Split:
    """The 99th percentiles of the response time, in seconds: with the product's choice and with the best fixed split.

    `share` is the share of the faster target in the best split.
    """

    chosen: float
    best: float
    share: float


def two_speeds(*, seed: int, slots: int, requests: int, spread: float, slowness: float = 3.0) -> Split:
    """Send requests to two targets, of which one is slower. Service times are log-normal: `spread` is their sigma."""
    dice = random.Random(seed)
    sent = _without_key(dice, requests, rate=_UTILIZATION * slots * (1 + 1 / slowness), spread=spread)

    def servers() -> list[Server]:
        return [Server(slots=slots), Server(slots=slots, slowness=slowness)]

    chosen = p99(Platform(servers(), seed=seed).serve(sent))
    best, share = min((p99(_split(servers(), sent, percent / 100)), percent / 100) for percent in range(50, 101, 2))
    return Split(chosen=chosen, best=best, share=share)


def _without_key(dice: random.Random, number: int, *, rate: float, spread: float) -> list[Request]:
    """Return Poisson arrivals with a mean service time of a second."""
    sent, at = [], 0.0
    for _ in range(number):
        at += dice.expovariate(rate)
        seconds = dice.lognormvariate(-spread * spread / 2, spread)
        sent.append(Request(at=at, seconds=seconds, draw=dice.random()))
    return sent


def _split(servers: Sequence[Server], requests: Sequence[Request], share: float) -> list[float]:
    """Return the response times if the first server gets a fixed share of the requests at random."""
    first, second = servers
    return [
        (first if request.draw < share else second).serve(request, request.at + _DELAY) - request.at
        for request in requests
    ]


# -- prompt caches -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CacheHits:
    """The shares of prompt tokens that were cached: with the product's choice, at random, and with one joint cache."""

    chosen: float
    random: float
    ideal: float


def prompt_caches(*, seed: int, requests: int, cached_tokens: int = 300_000, slots: int = 8) -> CacheHits:
    """Send conversations with growing prompts to servers that keep this many tokens each.

    The ideal is one cache of the joint size: no assignment of conversations to servers could keep more.
    """
    dice = random.Random(seed)
    sent = _conversations(dice, requests, slots=slots)
    tokens = sum(request.prompt for request in sent)

    def servers() -> list[Server]:
        return [Server(slots=slots, cache=PromptCache(cached_tokens)) for _ in range(TARGETS)]

    chosen, at_random = servers(), servers()
    Platform(chosen, seed=seed).serve(sent)
    for request in sent:
        at_random[int(request.draw * TARGETS)].serve(request, request.at)
    joint = PromptCache(cached_tokens * TARGETS)
    return CacheHits(
        chosen=sum(server.hits for server in chosen) / tokens,
        random=sum(server.hits for server in at_random) / tokens,
        ideal=sum(joint.read(request) for request in sent) / tokens,
    )


def _conversations(dice: random.Random, requests: int, *, slots: int) -> list[Request]:
    """Return the requests of conversations that begin at random, in the order of time."""
    seconds, turns, pause = 4.0, 8, 30.0
    rate = _UTILIZATION * slots * TARGETS / (seconds + 0.5)
    sent: list[Request] = []
    begins = 0.0
    for conversation in range(requests // turns):
        begins += dice.expovariate(rate / turns)
        at, prompt = begins, 0
        for _ in range(min(64, 1 + int(dice.expovariate(1 / turns)))):
            prompt += int(dice.lognormvariate(6.0, 1.0))
            answer = int(dice.lognormvariate(5.5, 0.8))
            time = dice.lognormvariate(-0.125, 0.5) * seconds
            sent.append(
                Request(
                    at=at, seconds=time, draw=dice.random(), conversation=conversation, prompt=prompt, answer=answer
                )
            )
            prompt += answer
            at += time + dice.expovariate(1 / pause)
    return sorted(sent, key=lambda request: request.at)


# -- targets that join or leave ----------------------------------------------------------------------------------------


def moved_keys(*, seed: int) -> list[float]:
    """Return the shares of the keys that get another target when one leaves, and when one joins."""
    firsts = []
    for number in (TARGETS - 1, TARGETS, TARGETS + 1):
        route, loads = Route.through(make_targets(number)), TargetLoads()
        firsts.append([with_affinity(route, key=f"key {seed} {key}", loads=loads).upstream.id for key in range(_KEYS)])
    return [
        sum(before != after for before, after in zip(few, many, strict=True)) / _KEYS for few, many in pairwise(firsts)
    ]
