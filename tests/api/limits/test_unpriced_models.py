"""Requests for models without a price under a hard budget: the error names the model and the remedy."""

from typing import Any

import pytest

from tenants.prices import PriceList
from tests.support.api import Api, error, ok
from tests.support.background import ended
from tests.support.batches import answers, asked, line
from tests.support.batches import ended as ended_batch
from tests.support.limits import limit
from tests.support.targets import Targets
from tests.support.upstream import Script
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket
from tests.support.workers import WorkerProcess

USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/responses": {"input": "Hi"},
    "/chat/completions": {"messages": USER},
    "/completions": {"prompt": "Hi"},
    "/messages": {"messages": USER, "max_tokens": 100},
    "/embeddings": {"input": "Hi"},
    "/moderations": {"input": "Hi"},
    "/responses/compact": {"input": "Hi"},
}


def expected(model: str, of: str = "your API key") -> str:
    return (
        f"The model '{model}' has no price, so the hard budget of {of} cannot cover the call. "
        "Use a model with a price, or ask an operator to set its prices (`manage.py set_price`, or the page of the "
        "model in the console) or to allow unknown prices in the budget."
    )


@pytest.mark.parametrize("path", [*BODIES])
def test_the_error_names_the_model_and_the_remedy(api: Api, script: Script, path: str) -> None:
    limit(api.caller, budget="1")
    refused = api.post(path, {"model": script.model, **BODIES[path]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == expected(script.model)
    assert script.received == []


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/completions", "/messages"])
def test_the_error_of_a_stream_names_the_model(api: Api, script: Script, path: str) -> None:
    limit(api.caller, budget="1", of="team")
    refused = api.post(path, {"model": script.model, "stream": True, **BODIES[path]})
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, expected(script.model, "your team"))


def test_the_error_over_websocket_names_the_model(api: Api, web: WebProcess, script: Script) -> None:
    limit(api.caller, budget="1")
    with open_socket(web.url, secret=api.caller.secret) as socket:
        socket.ask(model=script.model, input="Hi")
        refused = socket.next()
    assert (refused["status"], refused["error"]["code"]) == (400, "price_unknown")
    assert refused["error"]["message"] == expected(script.model)


@pytest.mark.slow
def test_the_error_of_a_background_response_names_the_model(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, budget="1")
    created = ok(api.post("/responses", {"model": script.model, "input": "Hi", "background": True}))
    failed = ended(api, created["id"])
    assert failed["error"] == {"code": "invalid_prompt", "message": expected(script.model)}


@pytest.mark.slow
def test_the_error_of_a_line_of_a_batch_names_the_model(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, budget="1")
    batch = ended_batch(api, asked(api, line("a", model=script.model, input="Hi"))["id"])
    [refused] = answers(api, batch["error_file_id"]).values()
    assert refused["response"]["body"]["error"]["message"] == expected(script.model)


def test_the_error_says_that_one_of_several_upstreams_has_no_price(api: Api, targets: Targets) -> None:
    limit(api.caller, budget="1")
    targets.add(prices=PriceList.simple(input="1", output="1"))
    targets.add()
    refused = api.post("/responses", {"model": targets.name, "input": "Hi"})
    assert error(refused)[2] == "price_unknown"
    assert f"The model '{targets.name}' has no price at one of its upstreams, so" in refused.json()["error"]["message"]
