"""`POST /v1/images/generations` and `…/edits`: validation, routing, forwarding and usage records."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx2
import pytest
from aiohttp import web as aiohttp
from openai import OpenAI

from tenants import scope, services
from tenants.models import Model, Team, UsageRecord
from tenants.prices import PriceEntry
from tests.support.aiohttp_server import serving
from tests.support.api import Api, MakeApi, error, ok
from tests.support.image_server import USAGE, ImageServer, image_server
from tests.support.limits import limit
from tests.support.usage_records import usage_record, usage_records

CAT = b"\x89PNG\r\n\x1a\ncat"
MASK = b"\x89PNG\r\n\x1a\nmask"


@pytest.fixture
def images(database: None) -> Iterator[ImageServer]:
    """Start an image server that serves the model `painter` and one named after its address."""
    with image_server() as running:
        services.add_upstream(name=running.url, base_url=running.url, models=[model_of(running)])
        yield running


def model_of(running: ImageServer) -> str:
    return f"painter-{running.url.rpartition(':')[2].removesuffix('/v1')}"


def edit(api: Api, fields: dict[str, str], *files: tuple[str, bytes]) -> httpx2.Response:
    """Send a form."""
    parts: list[Any] = [(name, (f"{name}.png", content, "image/png")) for name, content in files]
    return api.request("POST", "/images/edits", data=fields, files=parts)


def test_request_and_answer_are_forwarded(api: Api, images: ImageServer) -> None:
    images.draw("QUJD")
    body = {
        "model": model_of(images),
        "prompt": "A cat",
        "n": 1,
        "size": "auto",
        "quality": "hd",
        "style": "vivid",
        "safety_identifier": "u1",
    }
    answer = ok(api.post("/images/generations", {**body, "user": None}))
    assert answer == {"created": 1, "data": [{"b64_json": "QUJD"}], "usage": USAGE}
    assert [(one.path, one.fields) for one in images.asked] == [("/images/generations", body)]
    with scope.team(api.caller.team.pk):
        row = UsageRecord.objects.get()
    assert (row.endpoint, row.input_tokens, row.output_tokens, row.estimated) == ("images", 7, 40, False)
    assert (row.images, row.batch) == (1, False)


def test_an_edit_is_sent_as_a_form(api: Api, images: ImageServer) -> None:
    images.draw("QUJD")
    fields = {"model": model_of(images), "prompt": "A hat", "n": "1", "input_fidelity": "high"}
    answer = edit(api, fields, ("image", CAT), ("image", CAT), ("mask", MASK))
    assert ok(answer)["data"] == [{"b64_json": "QUJD"}]
    [asked] = images.asked
    assert (asked.path, asked.fields) == ("/images/edits", fields)
    assert asked.files == [
        ("image[]", "image/png", CAT),
        ("image[]", "image/png", CAT),
        ("mask", "image/png", MASK),
    ]


@pytest.mark.slow
def test_an_unanswered_request_is_recorded(api: Api, images: ImageServer) -> None:
    body = {"model": model_of(images), "prompt": "A hat"}
    for number in (1, 2):
        images.cut()
        images.draw()
        ok(edit(api, body, ("image", CAT)) if number == 1 else api.post("/images/generations", body))
        rows = usage_records(api.caller, 2 * number)[-2:]
        assert [(row.outcome, row.estimated) for row in rows] == [("failed", True), ("stop", False)]


def test_an_unanswered_edit_is_not_repeated_under_a_budget(api: Api, images: ImageServer) -> None:
    limit(api.caller, budget="1")
    price = PriceEntry(dimension="call", amount=Decimal("0.05"), per=1)
    services.set_prices(Model.objects.get(name=model_of(images)), [price])
    images.cut()
    assert error(edit(api, {"model": model_of(images), "prompt": "A hat"}, ("image", CAT)))[0] == 503
    assert (len(images.asked), usage_record(api.caller).budget_cost) == (1, Decimal("0.05"))


def test_an_edit_accepts_large_images(api: Api, images: ImageServer) -> None:
    images.draw("QUJD")
    ok(edit(api, {"model": model_of(images), "prompt": "A hat"}, ("image", CAT + bytes(4_000_000))))
    assert len(images.asked[0].files[0][2]) == len(CAT) + 4_000_000


def test_the_teams_image_model_is_the_default(api: Api, images: ImageServer) -> None:
    images.draw()
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(image_model=model_of(images))
    ok(api.post("/images/generations", {"prompt": "A cat"}))
    assert images.asked[0].fields == {"prompt": "A cat", "model": model_of(images)}


def test_a_missing_image_model_is_reported_with_its_setting(api: Api) -> None:
    answer = api.post("/images/generations", {"prompt": "A cat"})
    assert error(answer) == (400, "model", "unsupported_value")
    assert "IMAGE_MODEL" in answer.json()["error"]["message"]


def test_an_upstream_without_the_endpoint_is_reported(api: Api, database: None) -> None:
    with serving(aiohttp.Application()) as url:
        services.add_upstream(name=url, base_url=url, models=[url])
        answer = api.post("/images/generations", {"model": url, "prompt": "A cat"})
    assert error(answer) == (400, "model", "unsupported_value")
    with scope.team(api.caller.team.pk):
        assert UsageRecord.objects.get().outcome == "failed"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": "A cat", "stream": True}, "stream", "unsupported_parameter"),
        ({"prompt": "A cat", "partial_images": 2}, "partial_images", "unsupported_parameter"),
        ({"prompt": "A cat", "n": 11}, "n", "integer_above_max_value"),
        ({"prompt": "A cat", "sise": "auto"}, "sise", "unknown_parameter"),
    ],
)
def test_invalid_parameters_are_rejected(api: Api, body: dict[str, Any], param: str, code: str) -> None:
    assert error(api.post("/images/generations", {"model": "m", **body})) == (400, param, code)


@pytest.mark.parametrize(
    ("files", "param"), [([], "image"), ([("image", b"")], "image"), ([("image", CAT), ("photo", CAT)], "photo")]
)
def test_invalid_forms_are_rejected(api: Api, files: list[tuple[str, bytes]], param: str) -> None:
    answer = edit(api, {"model": "m", "prompt": "A hat"}, *(files or [("mask", MASK)]))
    assert error(answer)[:2] == (400, param)


def test_generating_requires_its_scope(make_api: MakeApi) -> None:
    api = make_api(scopes=["responses.write"])
    assert error(api.post("/images/generations", {"model": "m", "prompt": "A cat"}))[0] == 403


def test_another_teams_model_is_not_found(outsider: Api, make_api: MakeApi, images: ImageServer) -> None:
    api = make_api(allowed_models=["another"])
    body = {"model": model_of(images), "prompt": "A cat"}
    assert error(api.post("/images/generations", body))[1:] == ("model", "model_not_found")
    images.draw()
    ok(outsider.post("/images/generations", body))


def test_the_sdk_gets_images(client: OpenAI, images: ImageServer) -> None:
    images.draw("QUJD", size="1024x1024")
    made = client.images.generate(model=model_of(images), prompt="A cat")
    images.draw("REVG")
    edited = client.images.edit(model=model_of(images), prompt="A cat", image=[("a.png", CAT), ("b.png", CAT)])
    assert made.data
    assert edited.data
    assert (made.size, made.data[0].b64_json, edited.data[0].b64_json) == ("1024x1024", "QUJD", "REVG")
