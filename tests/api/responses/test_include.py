"""`include`: fields of a response's items that are shown on request, on creation and on retrieval."""

from typing import Any

import pytest

from conversations.models import Item, Placement, Section
from tenants import scope
from tests.support.api import Api, error, ok
from tests.support.items import PIXEL, SAMPLES
from tests.support.model_capabilities import describe
from tests.support.upstream import Script

IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
SEEN = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look"}, IMAGE]}
IMAGES = "message.input_image.image_url"
RESULTS = "file_search_call.results"


def image_url(item: dict[str, Any]) -> str | None:
    """Return the URL of the image in an item."""
    found: str | None = item["content"][1]["image_url"]
    return found


def with_output(api: Api, response_id: str, item: dict[str, Any]) -> None:
    """Add an item to a response's output, as a run with file search would."""
    team_id = api.caller.team.pk
    with scope.team(team_id):
        row = Item.objects.create(team_id=team_id, id=item["id"], type=item["type"], body=item)
        Placement.objects.create(team_id=team_id, owner=response_id, section=Section.OUTPUT, position=9, item=row)


@pytest.mark.parametrize(
    "query",
    [
        {"include[]": IMAGES},
        {"include": IMAGES},
        {"include": f"{RESULTS},{IMAGES}"},
        {"include[]": [RESULTS, IMAGES]},
        {"include": [RESULTS, IMAGES]},
    ],
)
def test_image_data_is_listed_on_request(api: Api, script: Script, query: dict[str, Any]) -> None:
    response_id = api.create(model=script.say("A cat.").model, input=[SEEN])["id"]
    (plain,), (included,) = api.input_items(response_id), api.input_items(response_id, **query)
    assert (image_url(plain), image_url(included)) == (None, PIXEL)


def test_an_image_url_is_always_listed(api: Api, script: Script) -> None:
    item = {**SEEN, "content": [SEEN["content"][0], {**IMAGE, "image_url": "https://example.com/a.png"}]}
    describe(script, inline_images=False).say("A cat.")
    response_id = api.create(model=script.model, input=[item])["id"]
    assert image_url(api.input_items(response_id)[0]) == "https://example.com/a.png"


def test_a_model_sees_images_that_are_not_listed(api: Api, script: Script) -> None:
    first = api.create(model=script.say("A cat.").model, input=[SEEN])
    api.create(model=script.say("Sure.").model, input="Sure?", previous_response_id=first["id"])
    assert script.messages[1][0]["content"][1]["image_url"]["url"] == PIXEL


def test_results_are_retrieved_on_request(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    with_output(api, response_id, SAMPLES["fs_1"])
    plain = api.retrieve(response_id)["output"][1]
    included = ok(api.get(f"/responses/{response_id}", **{"include[]": RESULTS}))["output"][1]
    assert plain == {**SAMPLES["fs_1"], "results": None}
    assert included == SAMPLES["fs_1"]


def test_includes_of_the_request_apply_to_later_reads(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input=[SEEN], include=[RESULTS, IMAGES])["id"]
    with_output(api, response_id, SAMPLES["fs_1"])
    assert api.retrieve(response_id)["output"][1] == SAMPLES["fs_1"]
    assert ok(api.get("/responses"))["data"][0]["output"][1] == SAMPLES["fs_1"]
    assert image_url(api.input_items(response_id)[0]) == PIXEL


@pytest.mark.parametrize("path", ["/responses/{}", "/responses/{}/input_items"])
@pytest.mark.parametrize("name", ["include", "include[]"])
def test_an_unknown_include_is_rejected_with_the_known_ones(api: Api, script: Script, path: str, name: str) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    answer = api.get(path.format(response_id), **{name: f"{IMAGES},everything"})
    assert error(answer) == (400, "include", "invalid_value")
    message = answer.json()["error"]["message"]
    assert message.startswith("Invalid value: 'everything'. Supported values are: 'file_search_call.results', ")


def test_unknown_values_are_rejected_for_a_replay(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    answer = api.get(f"/responses/{response_id}", stream="true", include="everything")
    assert error(answer) == (400, "include", "invalid_value")
