"""Tokens read from or written to an upstream's cache: in the response, the turn and the usage record."""

import pytest

from responses.models import Response, Turn
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller
from tests.support.chunks import chunk, usage
from tests.support.responses_upstream import answer, message_events
from tests.support.upstream import Script, stream

CACHED = {"cached_tokens": 4, "cache_write_tokens": 3}


@pytest.fixture(params=["chat completions", "responses"])
def upstream_with_usage(request: pytest.FixtureRequest) -> Script:
    """Return a model whose upstream reports this usage."""
    if request.param == "responses":
        responses_api_script: Script = request.getfixturevalue("responses_api_script")
        return responses_api_script.then(answer(message_events("Hello")))
    script: Script = request.getfixturevalue("script")
    counted = usage(prompt_tokens=11, completion_tokens=5, prompt_tokens_details=CACHED)
    return script.then(stream(chunk(content="Hello"), chunk(finish="stop"), counted))


def test_cached_tokens_are_reported_and_stored(api: Api, upstream_with_usage: Script, caller: Caller) -> None:
    created = api.create(model=upstream_with_usage.model, input="Hi")
    assert created["usage"]["input_tokens_details"] == CACHED
    assert api.retrieve(created["id"])["usage"] == created["usage"]
    with scope.team(caller.team.pk):
        rows: list[Response | Turn | UsageRecord] = [
            Response.objects.get(),
            Turn.objects.get(),
            UsageRecord.objects.get(),
        ]
    assert [(row.cached_tokens, row.cache_write_tokens) for row in rows] == [(4, 3)] * 3
