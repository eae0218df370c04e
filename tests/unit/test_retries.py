"""Pauses before an upstream gets a request again."""

import asyncio
import time
from datetime import timedelta
from email.utils import format_datetime
from uuid import uuid4

import pytest

from core.clock import now
from core.errors import Failure
from providers.first_answer import FirstAnswer
from providers.retries import Retries
from tenants.directory import Route, UpstreamEndpoint
from tests.support.machine_clock import machine_time


def route() -> Route:
    """Return the route of a model that nothing else uses."""
    upstream = UpstreamEndpoint(id=uuid4().hex, name="u", base_url="http://127.0.0.1:1/v1", api_key="")
    return Route(model="m", upstream_model="m", upstream=upstream)


def busy(**headers: str) -> Failure:
    """Return the failure of a request that an upstream has refused."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Failure(code="rate_limit_exceeded", message="Busy.", status=429, headers=named)


async def seconds_of(retries: Retries, failure: Failure) -> float | None:
    """Return how long a pause took; None if the request is not repeated."""
    began = time.monotonic()
    return time.monotonic() - began if await retries.pause(failure) else None


@pytest.mark.slow
async def test_pauses_grow_until_the_deadline() -> None:
    retries = Retries(route(), patience=2)
    pauses = [await seconds_of(retries, busy()) for _ in range(3)]
    assert [pause is not None for pause in pauses] == [True, True, False]
    assert pauses[0] is not None
    assert pauses[0] >= 0.3
    assert pauses[1] is not None
    assert pauses[1] >= 0.9


@pytest.mark.slow
async def test_a_pause_is_as_long_as_the_upstream_asks_for() -> None:
    pause = await seconds_of(Retries(route(), patience=5), busy(retry_after_ms="700"))
    assert pause is not None
    assert pause >= 0.7


@pytest.mark.parametrize("asked", [{"retry_after": "7"}, {"retry_after_ms": "7000"}, {"retry_after": "1e300"}])
async def test_a_request_is_not_repeated_if_the_requested_pause_is_too_long(asked: dict[str, str]) -> None:
    assert await seconds_of(Retries(route(), patience=2), busy(**asked)) is None


async def test_retries_are_left_to_the_client_without_a_deadline() -> None:
    assert await seconds_of(Retries(route(), patience=0), busy()) is None


@pytest.mark.slow
async def test_other_requests_for_the_model_wait_as_well() -> None:
    shared = route()
    assert await seconds_of(Retries(shared, patience=0), busy(retry_after_ms="500")) is None
    began = time.monotonic()
    await Retries(shared, patience=5).wait_for_others()
    assert time.monotonic() - began >= 0.4
    # Requests that would wait too long are sent to the upstream, and so are requests for other models.
    assert await seconds_of(Retries(shared, patience=0), busy(retry_after="30")) is None
    began = machine_time()
    await Retries(shared, patience=1).wait_for_others()
    await Retries(route(), patience=60).wait_for_others()
    assert machine_time() - began < 0.4


@pytest.mark.parametrize(("days", "repeats"), [(1, False), (-1, True)])
async def test_a_date_in_retry_after_is_respected(days: int, repeats: bool) -> None:
    date = format_datetime(now() + timedelta(days=days), usegmt=True)
    assert await Retries(route(), patience=2).pause(busy(retry_after=date)) is repeats


async def test_an_invalid_date_in_retry_after_is_ignored() -> None:
    assert await Retries(route(), patience=2).pause(busy(retry_after="soon"))


async def test_a_stream_waits_for_the_first_answer_during_pauses() -> None:
    waiting = FirstAnswer()
    retries = Retries(route(), patience=2, first_answer=waiting)
    waiter = asyncio.ensure_future(waiting.wait())
    assert await retries.pause(busy())
    assert not waiter.done()
    waiting.begin()
    await waiter
    assert waiting.has_begun
