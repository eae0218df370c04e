"""Simulated model servers: parallel slots with a queue, and a prompt cache."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

# Tokens of a prompt that a server reads per second.
_READ_PER_SECOND = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request at a moment. `seconds` is the time that a server of normal speed needs without reading the prompt.

    `prompt` and `answer` are numbers of tokens. Each prompt of a conversation begins with the previous one and its
    answer. `draw` is a random number from 0 to 1 for decisions outside of the product.
    """

    at: float
    seconds: float
    draw: float
    conversation: int = -1
    prompt: int = 0
    answer: int = 0


class PromptCache:
    """The conversations that were used last, up to a number of tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._cached: OrderedDict[int, int] = OrderedDict()
        self._total = 0

    def read(self, request: Request) -> int:
        """Return how many tokens of the prompt are cached, and keep the prompt and its answer."""
        known, length = self._cached.pop(request.conversation, 0), request.prompt + request.answer
        self._cached[request.conversation] = length
        self._total += length - known
        while self._total > self._tokens:
            self._total -= self._cached.popitem(last=False)[1]
        return min(known, request.prompt)


class Server:
    """A model server that works on as many requests at once as it has slots. `slowness` multiplies its times."""

    def __init__(self, *, slots: int, slowness: float = 1.0, cache: PromptCache | None = None) -> None:
        self._slowness = slowness
        self._cache = cache
        # The moments from which each slot is free, as a heap.
        self._free = [0.0] * slots
        self.hits = 0

    def serve(self, request: Request, at: float) -> float:
        """Accept a request and return the moment at which its answer ends."""
        seconds = request.seconds
        if self._cache is not None:
            hit = self._cache.read(request)
            self.hits += hit
            seconds += (request.prompt - hit) / _READ_PER_SECOND
        end = max(at, self._free[0]) + seconds * self._slowness
        heapreplace(self._free, end)
        return end


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile without the first tenth of the requests, when the servers were still idle."""
    counted = sorted(seconds[len(seconds) // 10 :])
    return counted[int(len(counted) * 0.99)]
