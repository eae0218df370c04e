"""`include`: what is shown of a response's items to those who ask, on creation and when they are read."""

from typing import Any

import pytest

from conversations.models import Item, Placement, Section
from tenants import scope
from tests.support.api import Api, error, ok
from tests.support.items import PIXEL, SAMPLES
from tests.support.upstream import Script

IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
SEEN = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look"}, IMAGE]}
IMAGES = "message.input_image.image_url"
RESULTS = "file_search_call.results"


def image_url(item: dict[str, Any]) -> str | None:
    """The URL of the image in `SEEN`."""
    found: str | None = item["content"][1]["image_url"]
    return found


def with_output(api: Api, response_id: str, item: dict[str, Any]) -> None:
    """Puts an item into a response's output, as a run does that searches files."""
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
def test_the_bytes_of_an_image_are_listed_for_those_who_ask(api: Api, script: Script, query: dict[str, Any]) -> None:
    response_id = api.create(model=script.say("A cat.").model, input=[SEEN])["id"]
    (plain,), (asked,) = api.input_items(response_id), api.input_items(response_id, **query)
    assert (image_url(plain), image_url(asked)) == (None, PIXEL)


def test_an_image_by_url_is_listed_with_it(api: Api, script: Script) -> None:
    item = {**SEEN, "content": [SEEN["content"][0], {**IMAGE, "image_url": "https://example.com/a.png"}]}
    response_id = api.create(model=script.say("A cat.").model, input=[item])["id"]
    assert image_url(api.input_items(response_id)[0]) == "https://example.com/a.png"


def test_the_model_sees_in_a_chain_what_is_not_listed(api: Api, script: Script) -> None:
    first = api.create(model=script.say("A cat.").model, input=[SEEN])
    api.create(model=script.say("Sure.").model, input="Sure?", previous_response_id=first["id"])
    assert script.messages[1][0]["content"][1]["image_url"]["url"] == PIXEL


def test_results_are_retrieved_by_those_who_ask(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    with_output(api, response_id, SAMPLES["fs_1"])
    plain = api.retrieve(response_id)["output"][1]
    asked = ok(api.get(f"/responses/{response_id}", **{"include[]": RESULTS}))["output"][1]
    assert plain == {**SAMPLES["fs_1"], "results": None}
    assert asked == SAMPLES["fs_1"]


def test_what_the_request_included_is_shown_again(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input=[SEEN], include=[RESULTS, IMAGES])["id"]
    with_output(api, response_id, SAMPLES["fs_1"])
    assert api.retrieve(response_id)["output"][1] == SAMPLES["fs_1"]
    assert ok(api.get("/responses"))["data"][0]["output"][1] == SAMPLES["fs_1"]
    assert image_url(api.input_items(response_id)[0]) == PIXEL


@pytest.mark.parametrize("path", ["/responses/{}", "/responses/{}/input_items"])
@pytest.mark.parametrize("name", ["include", "include[]"])
def test_it_names_what_can_be_included(api: Api, script: Script, path: str, name: str) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    answer = api.get(path.format(response_id), **{name: f"{IMAGES},everything"})
    assert error(answer) == (400, "include", "invalid_value")
    message = answer.json()["error"]["message"]
    assert message.startswith("Invalid value: 'everything'. Supported values are: 'file_search_call.results', ")


def test_a_replay_shows_what_was_sent(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    answer = api.get(f"/responses/{response_id}", stream="true", include=RESULTS)
    assert error(answer) == (400, "include", "unsupported_parameter")
