"""`POST /v1/images/generations` and `…/edits`: checked, routed, passed on, and written to the ledger."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from aiohttp import web as aiohttp
from openai import OpenAI

from demo_upstream.app import create_app
from demo_upstream.images import SIDE
from tenants import scope, services
from tenants.models import Team, UsageRecord
from tests.support.aiohttp_server import serving
from tests.support.api import Api, MakeApi, error, ok
from tests.support.image_server import USAGE, ImageServer, image_server

CAT = b"\x89PNG\r\n\x1a\ncat"
MASK = b"\x89PNG\r\n\x1a\nmask"


@pytest.fixture
def drawing(database: None) -> Iterator[ImageServer]:
    """A server of images, which answers for the model `painter` and its own address."""
    with image_server() as running:
        services.add_upstream(name=running.url, base_url=running.url, models=[model_of(running)])
        yield running


def model_of(running: ImageServer) -> str:
    return f"painter-{running.url.rpartition(':')[2].removesuffix('/v1')}"


def edit(api: Api, fields: dict[str, str], *files: tuple[str, bytes]) -> httpx2.Response:
    """Send a form."""
    parts: list[Any] = [(name, (f"{name}.png", content, "image/png")) for name, content in files]
    return api.request("POST", "/images/edits", data=fields, files=parts)


def test_it_passes_on_what_was_sent_and_what_came(api: Api, drawing: ImageServer) -> None:
    drawing.draw("QUJD")
    body = {"model": model_of(drawing), "prompt": "A cat", "n": 1, "size": "auto", "quality": "hd", "style": "vivid"}
    answer = ok(api.post("/images/generations", {**body, "user": None}))
    assert answer == {"created": 1, "data": [{"b64_json": "QUJD"}], "usage": USAGE}
    assert [(one.path, one.fields) for one in drawing.asked] == [("/images/generations", body)]
    with scope.team(api.caller.team.pk):
        row = UsageRecord.objects.get()
    assert (row.endpoint, row.input_tokens, row.output_tokens, row.estimated) == ("images", 7, 40, False)


def test_an_edit_is_a_form(api: Api, drawing: ImageServer) -> None:
    drawing.draw("QUJD")
    fields = {"model": model_of(drawing), "prompt": "A hat", "n": "1", "input_fidelity": "high"}
    answer = edit(api, fields, ("image", CAT), ("image", CAT), ("mask", MASK))
    assert ok(answer)["data"] == [{"b64_json": "QUJD"}]
    [asked] = drawing.asked
    assert (asked.path, asked.fields) == ("/images/edits", fields)
    assert asked.files == [
        ("image[]", "image/png", CAT),
        ("image[]", "image/png", CAT),
        ("mask", "image/png", MASK),
    ]


def test_the_team_has_a_model_for_those_who_name_none(api: Api, drawing: ImageServer) -> None:
    drawing.draw()
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(image_model=model_of(drawing))
    ok(api.post("/images/generations", {"prompt": "A cat"}))
    assert drawing.asked[0].fields == {"prompt": "A cat", "model": model_of(drawing)}


def test_without_any_model_it_says_what_to_configure(api: Api) -> None:
    answer = api.post("/images/generations", {"prompt": "A cat"})
    assert error(answer) == (400, "model", "unsupported_value")
    assert "IMAGE_MODEL" in answer.json()["error"]["message"]


def test_a_server_without_the_endpoint_is_said_to_have_none(api: Api, database: None) -> None:
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
def test_bad_requests_are_refused(api: Api, body: dict[str, Any], param: str, code: str) -> None:
    assert error(api.post("/images/generations", {"model": "m", **body})) == (400, param, code)


@pytest.mark.parametrize(
    ("files", "param"), [([], "image"), ([("image", b"")], "image"), ([("image", CAT), ("photo", CAT)], "photo")]
)
def test_bad_forms_are_refused(api: Api, files: list[tuple[str, bytes]], param: str) -> None:
    answer = edit(api, {"model": "m", "prompt": "A hat"}, *(files or [("mask", MASK)]))
    assert error(answer)[:2] == (400, param)


def test_the_key_needs_the_scope(make_api: MakeApi) -> None:
    api = make_api(scopes=["responses.write"])
    assert error(api.post("/images/generations", {"model": "m", "prompt": "A cat"}))[0] == 403


def test_a_model_of_others_does_not_exist(outsider: Api, make_api: MakeApi, drawing: ImageServer) -> None:
    api = make_api(allowed_models=["another"])
    body = {"model": model_of(drawing), "prompt": "A cat"}
    assert error(api.post("/images/generations", body))[1:] == ("model", "model_not_found")
    drawing.draw()
    ok(outsider.post("/images/generations", body))


def test_the_sdk_gets_pictures_from_the_demo(client: OpenAI, database: None) -> None:
    with serving(create_app()) as url:
        services.add_upstream(name=url, base_url=url, models=["demo-image"])
        made = client.images.generate(model="demo-image", prompt="A cat")
        edited = client.images.edit(model="demo-image", prompt="A cat", image=[("a.png", CAT), ("b.png", CAT)])
    assert made.data
    assert edited.data
    assert (made.size, made.data[0].b64_json == edited.data[0].b64_json) == (f"{SIDE}x{SIDE}", False)
