"""The HTTP client of SDKs in the tests: whatever they get is held to its types, as `Api` does it."""

import httpx2

from tests.support.validation import check_answer


def checking_client() -> httpx2.Client:
    """A client for `http_client=` of an SDK. Streams are left to the SDK, which reads them itself."""
    return httpx2.Client(timeout=30, event_hooks={"response": [_check]})


def _check(answer: httpx2.Response) -> None:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return
    answer.read()
    check_answer(answer.request.method, answer.request.url.path.removeprefix("/v1"), answer)
