"""Hard budgets with upstreams that bill the maximum which each request allows."""

import base64
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tenants import scope, services
from tenants.models import Model, Reservation, Team, UsageRecord
from tenants.prices import PriceList
from tests.support.api import Api, MakeApi, error
from tests.support.limits import limit
from tests.support.maximum_bills import (
    DECLARED,
    PNG,
    PNG_URL,
    PRICES,
    SILENCE,
    Bill,
    Call,
    billing_upstream,
    random_call,
    wav,
)
from tests.support.model_capabilities import describe
from tests.support.upstream import Script
from tests.support.waiting import eventually

# Status of a call that a budget does not cover, and of one without a maximum.
_REFUSED = {400, 429}


class Bills:
    """A model of the server and the calls that the server has billed."""

    def __init__(self, url: str, billed: list[Bill]) -> None:
        self.url, self.billed = url, billed

    def model(self, **capabilities: Any) -> str:
        """Return the name of a new model with all prices."""
        name = f"billed-{uuid.uuid4().hex[:12]}"
        services.add_upstream(name=name, base_url=self.url, models=[name])
        Model.objects.filter(name=name).update(inline_images=False, **capabilities)
        services.set_prices(Model.objects.get(name=name), PRICES)
        return name


@pytest.fixture
def declared(database: None) -> Iterator[Bills]:
    """Start a server that bills no more than the declared capabilities."""
    with billing_upstream(declared=True) as (url, billed):
        yield Bills(url, billed)


@pytest.fixture
def undeclared(database: None) -> Iterator[Bills]:
    """Start a server that bills a very large amount for everything without a declared maximum."""
    with billing_upstream(declared=False) as (url, billed):
        yield Bills(url, billed)


def send(api: Api, call: Call) -> httpx2.Response:
    if not call.files:
        return api.post(call.path, call.body)
    parts: list[Any] = [(name, ("a.bin", content, "image/png")) for name, content in call.files]
    return api.request("POST", call.path, data=call.body, files=parts)


def spent(api: Api) -> Decimal:
    with scope.team(api.caller.team.pk):
        return sum((row.cost or Decimal(0) for row in UsageRecord.objects.all()), Decimal(0))


def held(api: Api) -> Decimal:
    with scope.team(api.caller.team.pk):
        return sum((row.amount for row in Reservation.objects.all()), Decimal(0))


def chat(model: str, *parts: dict[str, Any], **body: Any) -> Call:
    content = [{"type": "text", "text": "Hi"}, *parts]
    return Call(
        path="/chat/completions", body={"model": model, "messages": [{"role": "user", "content": content}], **body}
    )


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def audio(content: bytes, form: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(content).decode(), "format": form}}


def upload(model: str, content: bytes, path: str = "/audio/transcriptions") -> Call:
    return Call(path=path, body={"model": model}, files=(("file", content),))


@pytest.mark.parametrize("kind", ["url", "data"])
@pytest.mark.parametrize("endpoint", ["chat", "responses", "moderations", "messages"])
def test_an_image_of_unknown_size_is_refused_under_a_hard_budget(
    api: Api, undeclared: Bills, kind: str, endpoint: str
) -> None:
    limit(api.caller, budget="0.08")
    model, url = undeclared.model(), PNG_URL if kind == "data" else "https://images.example/cat.png"
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    picture = {"type": "image", "source": source if kind == "data" else {"type": "url", "url": url}}
    call, param = {
        "chat": (chat(model, image(url), max_tokens=16), "messages[0].content[1]"),
        "responses": (
            Call(
                path="/responses",
                body={
                    "model": model,
                    "max_output_tokens": 16,
                    "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
                },
            ),
            "input",
        ),
        "moderations": (Call(path="/moderations", body={"model": model, "input": [image(PNG_URL)]}), "input[0]"),
        "messages": (
            Call(
                path="/messages",
                body={"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": [picture]}]},
            ),
            None,
        ),
    }[endpoint]
    answer = send(api, call)
    assert answer.status_code == 400
    assert not undeclared.billed
    assert spent(api) == 0
    if param is not None:
        assert error(answer) == (400, param, "cost_unbounded")
        assert "max_image_tokens" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_images_are_reserved_as_declared(api: Api, declared: Bills) -> None:
    limit(api.caller, budget="1")
    call = chat(declared.model(**DECLARED), *[image(PNG_URL)] * 3, max_tokens=16)
    statuses = [send(api, call).status_code for _ in range(15)]
    assert (statuses[0], statuses[-1]) == (200, 429)
    assert 0 < spent(api) <= Decimal(1)


@pytest.mark.parametrize("path", ["/audio/transcriptions", "/audio/translations"])
def test_compressed_audio_of_unknown_length_is_refused_under_a_hard_budget(
    api: Api, undeclared: Bills, path: str
) -> None:
    limit(api.caller, budget="0.10")
    model = undeclared.model(max_output_tokens=100)
    answers = [send(api, upload(model, SILENCE, path)) for _ in range(8)]
    assert {error(answer) for answer in answers} == {(400, "file", "cost_unbounded")}
    assert not undeclared.billed
    assert spent(api) == 0


def test_compressed_audio_in_a_chat_is_refused_under_a_hard_budget(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="0.10")
    answer = send(api, chat(undeclared.model(), audio(SILENCE, "mp3"), max_tokens=16))
    assert error(answer) == (400, "messages[0].content[1]", "cost_unbounded")
    assert undeclared.billed == []


@pytest.mark.slow
def test_tokens_of_uncompressed_audio_follow_from_its_size(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="0.15")
    # Ten seconds of audio whose header claims none.
    call = chat(undeclared.model(), audio(wav(80_000, claims=0), "wav"), max_tokens=16)
    statuses = [send(api, call).status_code for _ in range(10)]
    assert (statuses[0], statuses[-1]) == (200, 429)
    assert 0 < spent(api) <= Decimal("0.15")


def test_choices_without_an_output_limit_share_the_budget(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="0.03")
    model = undeclared.model()
    answers = [send(api, chat(model, n=128)).status_code for _ in range(6)]
    assert set(answers) <= {200, 429}
    assert spent(api) <= Decimal("0.03")


def test_speech_of_unknown_length_is_refused_under_a_hard_budget(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="0.10")
    body = {"model": undeclared.model(), "input": "Hi", "voice": "alloy", "speed": 0.25, "stream_format": "sse"}
    assert error(api.post("/audio/speech", body)) == (400, "model", "cost_unbounded")
    assert undeclared.billed == []


@pytest.mark.parametrize("previews", [0, 3])
def test_generated_images_of_a_run_are_kept_within_the_budget(
    api: Api, declared: Bills, script: Script, previews: int
) -> None:
    limit(api.caller, budget="0.25")
    painter = declared.model(**DECLARED)
    describe(script, prices=PriceList(PRICES), **DECLARED)
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(image_model=painter)
    script.call(image_generation='{"prompt": "A cat"}').say("Done.")
    tool = {"type": "image_generation", "partial_images": previews}
    body = {"model": script.model, "input": "Draw.", "tools": [tool], "max_output_tokens": 16}
    answer = api.post("/responses", body)
    call = next(item for item in answer.json()["output"] if item["type"] == "image_generation_call")
    # A preview is an image as well: $0.08 each.
    assert (call["status"], len(declared.billed)) == (("failed", 0) if previews else ("completed", 1))
    assert spent(api) <= Decimal("0.25")


def test_web_search_of_the_upstream_is_refused_under_a_hard_budget(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="0.10")
    answer = send(api, chat(undeclared.model(), web_search_options={}, max_tokens=16))
    assert error(answer) == (400, "web_search_options", "cost_unbounded")


def test_undeclared_quantities_are_bounded_by_the_context_window(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="10")
    model = undeclared.model(context_window=1_000_000)
    assert error(send(api, chat(model, image(PNG_URL), max_tokens=16)))[0] == 429
    assert undeclared.billed == []


@pytest.mark.parametrize("is_limited", [True, False])
def test_unknown_quantities_are_accepted_without_a_hard_budget(api: Api, undeclared: Bills, is_limited: bool) -> None:
    if is_limited:
        limit(api.caller, budget="0.01", is_hard=False, requests_per_minute=100)
    model = undeclared.model()
    calls = [
        chat(model, image(PNG_URL), audio(SILENCE, "mp3"), n=2),
        upload(model, SILENCE),
        Call(path="/images/generations", body={"model": model, "prompt": "A cat"}),
        Call(path="/audio/speech", body={"model": model, "input": "Hi", "voice": "alloy", "stream_format": "sse"}),
    ]
    assert [send(api, call).status_code for call in calls] == [200] * 4


def test_a_quantity_without_a_price_needs_no_maximum(api: Api, undeclared: Bills) -> None:
    limit(api.caller, budget="1")
    model = undeclared.model()
    services.set_prices(Model.objects.get(name=model), [price for price in PRICES if price.dimension == "audio_second"])
    # Its samples have a known length; the transcribed text costs nothing.
    assert send(api, upload(model, wav(80_000))).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_declared", [True, False])
def test_random_calls_never_exceed_a_budget(
    make_api: MakeApi, declared: Bills, undeclared: Bills, is_declared: bool, seed: int
) -> None:
    chosen = random.Random(f"{seed}/{is_declared}")
    server = declared if is_declared else undeclared
    model, api = server.model(**(DECLARED if is_declared else {})), make_api()
    budget = Decimal(chosen.choice(["0.3", "1", "3"]))
    limit(api.caller, budget=str(budget))
    calls = [random_call(chosen, model) for _ in range(60)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda call: send(api, call), calls))
    strange = [answer.text for answer in answers if answer.status_code not in {200, *_REFUSED}]
    assert strange == []
    refused = [answer.json()["error"] for answer in answers if answer.status_code == 400]
    assert {refusal["code"] for refusal in refused} <= {"cost_unbounded"}
    assert all(refusal["param"] for refusal in refused)
    assert bool(refused) != is_declared
    assert any(answer.status_code == 200 for answer in answers)
    eventually(lambda: held(api) == 0)
    billed = sum((bill.cost for bill in server.billed), Decimal(0))
    assert 0 < billed <= budget
    # Only seconds of audio have more decimal places than a cost.
    assert abs(spent(api) - billed) < Decimal("0.000001")
