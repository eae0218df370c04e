"""Counters of what became of the requests, so that tests can see whether a closed connection was noticed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from demo_upstream.errors import DemoApiError


@dataclass
class Stats:
    """Requests for chat and embeddings; `requests` is the sum of the other four.

    A fault that a model's name asks for counts as completed when it was played to its end, and as refused when it is an
    HTTP error.
    """

    requests: int = 0
    in_flight: int = 0
    completed: int = 0
    refused: int = 0
    disconnected: int = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the request that is served inside, by the way in which it ends."""
        self.requests += 1
        self.in_flight += 1
        try:
            yield
        except (DemoApiError, web.HTTPException):
            self.refused += 1
            raise
        except (ConnectionError, asyncio.CancelledError):
            self.disconnected += 1
            raise
        else:
            self.completed += 1
        finally:
            self.in_flight -= 1
