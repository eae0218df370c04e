"""HTTP client for SDKs that validates every response against its types, like `Api`."""

import ssl
from functools import cache

import httpx2

from tests.support.validation import check_answer
from tests.support.waiting import PATIENCE


@cache
def _tls() -> ssl.SSLContext:
    # Loading the certificate authorities takes 20 ms, which httpx2 would spend for each client.
    return ssl.create_default_context()


def checking_client() -> httpx2.Client:
    """Return a client for the `http_client` argument of an SDK. Streams are not validated, as the SDK reads them."""
    return httpx2.Client(timeout=PATIENCE, verify=_tls(), event_hooks={"response": [_check]})


def _check(answer: httpx2.Response) -> None:
    if answer.headers.get("content-type", "").startswith(("text/event-stream", "audio/")):
        return
    answer.read()
    check_answer(answer.request.method, answer.request.url.path.removeprefix("/v1"), answer)
