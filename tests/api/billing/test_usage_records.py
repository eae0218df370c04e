"""Usage records: one for each HTTP request that an upstream may charge for."""

from decimal import Decimal
from typing import Any

import pytest

from tenants import scope, services
from tenants.models import Team
from tenants.prices import PriceList
from tests.support.api import Api, Caller
from tests.support.chunks import chunk
from tests.support.model_capabilities import describe
from tests.support.upstream import Answer, Cut, Script, refusal, stream
from tests.support.usage_records import usage_record, usage_records

QUESTION = "Tell me all about the harbour, please."
CHAT = {"messages": [{"role": "user", "content": QUESTION}]}
RETRIED = {"x-should-retry": "true"}
BROKEN = Answer(pieces=[Cut()], delayed_head=True)
PRICES = PriceList.simple(input="2", output="8")
CUT = Answer(pieces=[b"data: {", Cut()])


def test_a_record_has_the_end_user_the_tier_and_the_upstreams_request_id(
    api: Api, script: Script, caller: Caller
) -> None:
    first = {**chunk(content="Hi"), "service_tier": "flex"}
    script.then(stream(first, chunk(finish="stop"), headers={"x-request-id": "req_theirs"}))
    api.create(model=script.model, input=QUESTION, safety_identifier="anna", user="bert")
    record = usage_record(caller)
    assert (record.end_user, record.service_tier, record.upstream_request_id) == ("anna", "flex", "req_theirs")


def test_the_record_of_a_chat_completion_has_the_same_fields(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(chunk(content="Hi"), chunk(finish="stop"), headers={"x-request-id": "req_theirs"}))
    api.post("/chat/completions", {"model": script.model, "user": "bert", **CHAT})
    record = usage_record(caller)
    assert (record.end_user, record.upstream_request_id) == ("bert", "req_theirs")


@pytest.mark.slow
def test_a_request_whose_connection_broke_is_estimated_and_counts(api: Api, script: Script, caller: Caller) -> None:
    script.then(BROKEN).say("Hi")
    response = api.create(model=script.model, input=QUESTION)
    lost, answered = usage_records(caller, 2)
    assert (lost.outcome, lost.estimated, lost.input_tokens, lost.output_tokens) == ("failed", True, 10, 0)
    assert (answered.outcome, answered.estimated) == ("stop", False)
    assert response["usage"]["input_tokens"] == 10 + answered.input_tokens


@pytest.mark.slow
def test_a_refused_request_of_a_chat_completion_is_recorded_without_tokens(
    api: Api, script: Script, caller: Caller
) -> None:
    script.then(refusal(503, headers=RETRIED)).say("Hi")
    api.post("/chat/completions", {"model": script.model, **CHAT})
    refused, _ = usage_records(caller, 2)
    assert (refused.outcome, refused.estimated, refused.input_tokens) == ("failed", False, 0)


MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
CALLS: dict[str, dict[str, Any]] = {
    "/responses": {"input": QUESTION},
    "/responses/compact": {"input": QUESTION},
    "/chat/completions": MESSAGES,
    "/completions": {"prompt": QUESTION},
    "/messages": {**MESSAGES, "max_tokens": 9},
    "/embeddings": {"input": QUESTION},
    "/moderations": {"input": QUESTION},
    "/images/generations": {"prompt": QUESTION},
    "/audio/speech": {"input": QUESTION, "voice": "alloy"},
}


@pytest.mark.slow
@pytest.mark.parametrize("is_reached", [True, False], ids=["refused", "unreachable"])
@pytest.mark.parametrize("path", CALLS)
def test_the_record_of_a_rejected_or_unsent_call_is_not_an_estimate(
    api: Api, script: Script, caller: Caller, path: str, *, is_reached: bool
) -> None:
    model = script.model
    if is_reached:
        script.always(refusal(400, "Not that."))
    else:
        model = f"{script.model}-gone"
        services.add_upstream(name=model, base_url="http://127.0.0.1:9/v1", models=[model])
    assert api.post(path, {"model": model, **CALLS[path]}).status_code >= 400
    records = usage_records(caller, 1)
    assert {(row.outcome, row.estimated, row.input_tokens, row.output_tokens) for row in records} == {
        ("failed", False, 0, 0)
    }


def test_an_answer_interrupted_at_its_beginning_counts_the_input(api: Api, script: Script, caller: Caller) -> None:
    script.then(CUT)
    api.post("/responses", {"model": script.model, "input": QUESTION})
    record = usage_record(caller)
    assert (record.outcome, record.estimated, record.input_tokens) == ("failed", True, 10)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_an_interrupted_chat_completion_counts_the_input(
    api: Api, script: Script, caller: Caller, *, stream: bool
) -> None:
    script.then(CUT)
    api.post("/chat/completions", {"model": script.model, "stream": stream, **CHAT})
    record = usage_record(caller)
    assert (record.outcome, record.estimated, record.input_tokens) == ("failed", True, 10)


def test_a_team_can_be_exempt_from_estimated_usage(api: Api, script: Script, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        Team.objects.filter(pk=caller.team.pk).update(unknown_usage="free")
    describe(script, prices=PRICES).then(CUT)
    api.post("/responses", {"model": script.model, "input": QUESTION})
    record = usage_record(caller)
    assert (record.estimated, record.input_tokens, record.cost) == (True, 10, 0)
    assert record.prices is not None
    assert record.prices[0]["cost"] == "0.00002"


def test_chat_completions_of_an_exempt_team_are_free_as_well(api: Api, script: Script, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        Team.objects.filter(pk=caller.team.pk).update(unknown_usage="free")
    describe(script, prices=PRICES).then(CUT)
    api.post("/chat/completions", {"model": script.model, **CHAT})
    assert (usage_record(caller).cost, usage_record(caller).input_tokens) == (0, 10)


def test_an_estimate_is_billed_by_default(api: Api, script: Script, caller: Caller) -> None:
    describe(script, prices=PRICES).then(CUT)
    api.post("/responses", {"model": script.model, "input": QUESTION})
    assert usage_record(caller).cost == Decimal("0.00002")
