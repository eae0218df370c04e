"""The pages of errors that no view handles."""

import logging
import sys

import redis
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.defaults import server_error as broken

from core.db.database import is_unavailable
from core.errors import DATABASE_LOST, ApiError, BadRequest, LimitsUnavailable, retry_headers
from core.http.rendering import error_response

logger = logging.getLogger(__name__)
_RETRY_SECONDS = 2.0


def server_error(request: HttpRequest) -> HttpResponse:
    """Return the page of an exception: 503 if the database or Redis is not available, else 500."""
    error = sys.exc_info()[1]
    failure: ApiError
    if is_unavailable(error):
        logger.warning("the database is not available: %s", error)
        failure = DATABASE_LOST.as_api_error()
    elif isinstance(error, redis.RedisError):
        # Pages show what they can without Redis, but passwords are checked only while attempts can be counted.
        logger.warning("the limits of sign-in attempts cannot be checked: %s", error)
        failure = LimitsUnavailable(headers=retry_headers(_RETRY_SECONDS))
    else:
        return broken(request)
    if "text/html" in request.headers.get("accept", ""):
        answer = render(None, "refused.html", {"error": failure}, status=failure.status)
        for name, value in failure.headers.items():
            answer[name] = value
    else:
        answer = error_response(failure)
    # Otherwise every request during an outage would log an error with a traceback.
    return _logged(answer)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page of a request that Django refuses, such as one with a `Host` that `ALLOWED_HOSTS` lacks."""
    logger.warning("the request is refused: %s", exception, extra={"path": request.path})
    # Scanners send such requests all the time; Django would log an error with a traceback for each.
    # Rendered without the request: its context processors would read the invalid host again and fail with 500.
    return _logged(render(None, "400.html", status=BadRequest.status))


def _logged(answer: HttpResponse) -> HttpResponse:
    """Keep Django from logging the exception that led to an answer."""
    answer._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - Django's own mark
    return answer
