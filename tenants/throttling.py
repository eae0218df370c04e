"""Throttles of Django REST framework for views on the event loop."""

from typing import Any

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle


class AsyncThrottle(BaseThrottle):
    """Throttle that asynchronous views await; synchronous views call `allow_request`."""

    async def allow_request_async(self, request: Request, view: Any) -> None:
        """Count a request, or raise the error of the limit that refuses it."""
        raise NotImplementedError

    async def add_headers(self, principal: object) -> None:
        """Add the headers that describe the limits of a principal to the response of a request that failed."""
        raise NotImplementedError
