"""Faults on request, for tests over a real socket. The model name selects the fault.

demo-error-<status>     an error with that status (400 to 599) instead of an answer; 429 has Retry-After: 1
demo-error-in-stream    three words, then an error event; without streaming, an error with status 200
demo-hang               accepts the request and sends nothing until the client disconnects
demo-hang-after-<n>     n words, then silence; without streaming, silence
demo-cut                three words, then the connection ends; without streaming, half a body
demo-garbage            three words, a line of garbage, the other words; without streaming, a body that is not JSON
demo-slow               a second of silence before the first byte
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo_upstream.errors import DemoApiError
from demo_upstream.steps import Cut, Delay, Hang, Script, Send, Step

FEW = 3
SLOWNESS = 1.0
GARBAGE = b"this line is not JSON"
EXAMPLES = (
    "demo-error-400",
    "demo-error-401",
    "demo-error-404",
    "demo-error-429",
    "demo-error-500",
    "demo-error-503",
    "demo-error-in-stream",
    "demo-hang",
    "demo-hang-after-3",
    "demo-cut",
    "demo-garbage",
    "demo-slow",
)


@dataclass(frozen=True)
class HttpError:
    """An HTTP error instead of an answer."""

    status: int


@dataclass(frozen=True)
class ErrorInStream:
    """An error after some words."""


@dataclass(frozen=True)
class Silence:
    """Silence after a number of words. With None, not even the headers are sent."""

    after: int | None


@dataclass(frozen=True)
class BrokenConnection:
    """The connection is closed in the middle of the answer."""


@dataclass(frozen=True)
class Garbage:
    """A line that is not JSON."""


@dataclass(frozen=True)
class Slowness:
    """A late first byte."""


Fault = HttpError | ErrorInStream | Silence | BrokenConnection | Garbage | Slowness

NAMES: tuple[tuple[str, Callable[[re.Match[str]], Fault]], ...] = (
    (r"demo-error-(?P<status>[45]\d\d)", lambda name: HttpError(int(name["status"]))),
    (r"demo-error-in-stream", lambda _: ErrorInStream()),
    (r"demo-hang", lambda _: Silence(None)),
    (r"demo-hang-after-(?P<words>\d{1,4})", lambda name: Silence(int(name["words"]))),
    (r"demo-cut", lambda _: BrokenConnection()),
    (r"demo-garbage", lambda _: Garbage()),
    (r"demo-slow", lambda _: Slowness()),
)


def named(model: str) -> Fault | None:
    """Return the fault of a model name, or None."""
    matches = ((re.fullmatch(pattern, model), fault) for pattern, fault in NAMES)
    return next((fault(match) for match, fault in matches if match), None)


def raise_instead_of_answering(fault: Fault | None) -> None:
    """Raise the error of a `demo-error-<status>` model."""
    if isinstance(fault, HttpError):
        headers = {"Retry-After": "1"} if fault.status == 429 else {}
        message = f"The demo model was asked by its name to fail with status {fault.status}."
        raise DemoApiError(message, status=fault.status, code=_code(fault.status), headers=headers)


def streamed(script: Script, *, pace: float, fault: Fault | None) -> list[Step]:
    """Return the steps of a stream, with `pace` seconds before each word and the fault applied."""
    beginning = [Send(script.opening), *_spoken(script.words[:FEW], pace=pace)]
    ending = [*_spoken(script.words[FEW:], pace=pace), *map(Send, script.closing)]
    match fault:
        case ErrorInStream():
            return [*beginning, Send(_event(_failure()))]
        case Silence(after=None):
            return [Hang()]
        case Silence(after=int(words)):
            return [Send(script.opening), *_spoken(script.words[:words], pace=pace), Hang()]
        case BrokenConnection():
            return [*beginning, Cut()]
        case Garbage():
            return [*beginning, Send(_event(GARBAGE)), *ending]
        case Slowness():
            return [Delay(SLOWNESS), *beginning, *ending]
        case _:
            return [*beginning, *ending]


def whole(body: bytes, *, seconds: float, fault: Fault | None) -> list[Step]:
    """Return the steps of a single body, which takes as long as its words would, with the fault applied."""
    match fault:
        case ErrorInStream():
            return [Send(_failure())]
        case Silence():
            return [Hang()]
        case BrokenConnection():
            return [Delay(seconds), Send(body[: len(body) // 2]), Cut()]
        case Garbage():
            return [Delay(seconds), Send(GARBAGE)]
        case Slowness():
            return [Delay(SLOWNESS + seconds), Send(body)]
        case _:
            return [Delay(seconds), Send(body)]


def _spoken(words: Sequence[bytes], *, pace: float) -> list[Step]:
    pause: list[Step] = [Delay(pace)] if pace else []
    return [step for word in words for step in (*pause, Send(word))]


def _event(line: bytes) -> bytes:
    return b"data: " + line + b"\n\n"


def _failure() -> bytes:
    return DemoApiError(
        "The demo model was asked by its name to fail here.", status=500, code="demo_failure"
    ).envelope()


def _code(status: int) -> str:
    codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
    return codes.get(status, "server_error" if status >= 500 else "invalid_value")
