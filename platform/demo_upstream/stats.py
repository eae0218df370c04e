"""Counters of requests by outcome. Tests use them to check that disconnects are noticed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from demo_upstream.errors import DemoApiError


@dataclass
class Stats:
    """Requests for chat and embeddings; `requests` is the sum of the other four.

    A requested fault counts as completed, or as refused if it is an HTTP error.
    """

    requests: int = 0
    in_flight: int = 0
    completed: int = 0
    refused: int = 0
    disconnected: int = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the request handled inside the `with` block by its outcome."""
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
