"""The pages of errors that no view handles."""

import logging
import sys

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.defaults import server_error as broken

from kernel.database import is_unavailable
from kernel.errors import DATABASE_LOST
from kernel.http import error_response

logger = logging.getLogger(__name__)


def server_error(request: HttpRequest) -> HttpResponse:
    """Return the page of an exception: 503 if the database is not available, else 500."""
    error = sys.exc_info()[1]
    if not is_unavailable(error):
        return broken(request)
    logger.warning("the database is not available: %s", error)
    failure = DATABASE_LOST.as_api_error()
    if "text/html" in request.headers.get("accept", ""):
        answer = render(None, "refused.html", {"error": failure}, status=failure.status)
        for name, value in failure.headers.items():
            answer[name] = value
    else:
        answer = error_response(failure)
    # Not an error with a traceback for each request of an outage.
    return _logged(answer)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page of a request that Django refuses, such as one with a `Host` that `ALLOWED_HOSTS` lacks."""
    logger.warning("the request is refused: %s", exception, extra={"path": request.path})
    # Scanners send such requests all the time; Django would log an error with a traceback for each.
    # Without the request: context processors read the host again, which is then an error 500.
    return _logged(render(None, "400.html", status=400))


def _logged(answer: HttpResponse) -> HttpResponse:
    """Keep Django from logging the exception that led to an answer."""
    answer._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - Django's own mark
    return answer
