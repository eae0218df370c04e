"""Tokens that an upstream read from its cache or wrote into it: in the response, in the turn, in the ledger."""

import pytest

from responses.models import Response, Turn
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller
from tests.support.chunks import chunk, usage
from tests.support.responses_upstream import answer, said
from tests.support.upstream import Script, stream

CACHED = {"cached_tokens": 4, "cache_write_tokens": 3}


@pytest.fixture(params=["chat completions", "responses"])
def answered(request: pytest.FixtureRequest) -> Script:
    """A model whose upstream says so in its way."""
    if request.param == "responses":
        relayed: Script = request.getfixturevalue("relayed")
        return relayed.then(answer(said("Hello")))
    script: Script = request.getfixturevalue("script")
    counted = usage(prompt_tokens=11, completion_tokens=5, prompt_tokens_details=CACHED)
    return script.then(stream(chunk(content="Hello"), chunk(finish="stop"), counted))


def test_they_are_shown_and_kept(api: Api, answered: Script, caller: Caller) -> None:
    made = api.create(model=answered.model, input="Hi")
    assert made["usage"]["input_tokens_details"] == CACHED
    assert api.retrieve(made["id"])["usage"] == made["usage"]
    with scope.team(caller.team.pk):
        rows: list[Response | Turn | UsageRecord] = [
            Response.objects.get(),
            Turn.objects.get(),
            UsageRecord.objects.get(),
        ]
    assert [(row.cached_tokens, row.cache_write_tokens) for row in rows] == [(4, 3)] * 3
