"""Large requests do not block the event loop, on which the streams of all others depend."""

import re
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from benchmarks.large_requests import requests
from tests.support.api import Api
from tests.support.sampling import rest_at_night
from tests.support.upstream import Script
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow
LARGE = {name: (path, body) for name, path, body in requests()}


def long_lags(web: WebProcess, http: httpx2.Client) -> float:
    """Return how often the event loop was late by more than 0.3 s, which is generous for a busy machine."""
    metrics = http.get(f"{web.url}/metrics").text
    (prompt,) = re.findall(r'^ors_event_loop_lag_seconds_bucket\{le="0.3"\} (\S+)$', metrics, re.MULTILINE)
    (total,) = re.findall(r"^ors_event_loop_lag_seconds_count (\S+)$", metrics, re.MULTILINE)
    return float(total) - float(prompt)


@pytest.mark.parametrize("name", rest_at_night(LARGE, first=4))
def test_a_large_request_does_not_block_the_event_loop(
    api: Api, web: WebProcess, http: httpx2.Client, script: Script, name: str
) -> None:
    path, body = LARGE[name]
    values: Mapping[str, Any] = {"model": script.model, **body}
    script.say("{}")
    before = long_lags(web, http)
    answer = api.post(path, dict(values))
    assert answer.status_code == 200, answer.text[:500]
    assert long_lags(web, http) == before
