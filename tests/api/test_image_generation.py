"""The tool `image_generation`: streamed and not, in the foreground and in the background, over a server of images."""

import base64
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from tenants import scope, services
from tenants.models import Team, UsageRecord
from tests.support.api import Api, MakeApi, error
from tests.support.image_server import USAGE, ImageServer, image_server
from tests.support.model_capabilities import describe
from tests.support.streams import types
from tests.support.upstream import Gate, Script

Json = dict[str, Any]
Ask = Callable[..., Json]
TOOL = {"type": "image_generation"}
ASKED = {"input": "Draw a cat.", "tools": [TOOL]}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nsmall").decode()


@pytest.fixture
def drawing(api: Api) -> Iterator[ImageServer]:
    """A server of images, whose model is that of the team of `api`."""
    with image_server() as running:
        model = f"painter-{uuid.uuid4().hex[:8]}"
        services.add_upstream(name=model, base_url=running.url, models=[model])
        with scope.every_team():
            Team.objects.filter(pk=api.caller.team.pk).update(image_model=model)
        yield running


def painting(script: Script, **arguments: Any) -> Script:
    return script.call(image_generation=orjson.dumps({"prompt": "A cat", **arguments}).decode())


def partial(index: int, content: str) -> Json:
    return {"type": "image_generation.partial_image", "partial_image_index": index, "b64_json": content}


def test_the_picture_stands_in_an_item(ask: Ask, api: Api, script: Script, drawing: ImageServer) -> None:
    drawing.draw(PNG, size="1024x1024", quality="high", output_format="png")
    response = ask(model=painting(script).say("There it is.").model, **ASKED)
    call, message = response["output"]
    assert call == {
        "id": call["id"],
        "type": "image_generation_call",
        "status": "completed",
        "action": "generate",
        "result": PNG,
        "revised_prompt": "A cat",
        "size": "1024x1024",
        "quality": "high",
        "output_format": "png",
    }
    assert message["content"][0]["text"] == "There it is."
    assert [(one.path, one.fields["prompt"]) for one in drawing.asked] == [("/images/generations", "A cat")]
    *_, told, shown = script.messages[1]
    assert (told["role"], told["tool_call_id"]) == ("tool", call["id"])
    assert shown["content"][0]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    with scope.team(api.caller.team.pk):
        row = UsageRecord.objects.get(endpoint="images")
    assert (row.object_id, row.input_tokens, row.output_tokens) == (response["id"], 7, 40)


def test_the_settings_of_the_tool_are_sent_on(api: Api, script: Script, drawing: ImageServer) -> None:
    drawing.draw()
    settings = {"size": "1536x1024", "quality": "low", "background": "transparent", "output_format": "webp"}
    more = {"output_compression": 50, "moderation": "low", "input_fidelity": "high"}
    tools = [{**TOOL, **settings, **more}]
    response = api.create(model=painting(script).say("Done.").model, input="Draw.", tools=tools)
    assert {**settings, **more}.items() <= drawing.asked[0].fields.items()
    assert response["tools"] == tools
    assert settings.items() <= response["output"][0].items()


def test_partial_pictures_come_while_it_is_drawn(api: Api, script: Script, drawing: ImageServer) -> None:
    gate = Gate()
    done = {"type": "image_generation.completed", "b64_json": PNG, "size": "8x8", "usage": USAGE}
    drawing.stream(partial(0, "AAAA"), gate, partial(1, "BBBB"), done)
    body = {"model": painting(script).say("Done.").model, "input": "Draw.", "tools": [{**TOOL, "partial_images": 2}]}
    with api.stream("/responses", **body) as live:
        first = next(event for event in live.events if event["type"].endswith("partial_image"))
        assert (first["partial_image_index"], first["partial_image_b64"]) == (0, "AAAA")
        gate.open()
        events = live.rest()
    names = [name.rpartition(".")[2] for name in types(events)]
    assert names[:3] == ["partial_image", "completed", "done"]
    assert events[2]["item"]["result"] == PNG
    assert drawing.asked[0].fields["partial_images"] == 2


def test_the_events_are_those_of_the_wire(api: Api, script: Script, drawing: ImageServer) -> None:
    drawing.draw()
    events = api.events(model=painting(script).say("Done.").model, **ASKED)
    assert types(events)[2:7] == [
        "response.output_item.added",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.generating",
        "response.image_generation_call.completed",
        "response.output_item.done",
    ]


def test_an_edit_is_given_the_images_of_the_conversation(api: Api, script: Script, drawing: ImageServer) -> None:
    drawing.draw(PNG)
    first = api.create(model=painting(script).say("A cat.").model, **ASKED)
    drawing.draw("TkVX")
    mask = {"image_url": f"data:image/png;base64,{PNG}"}
    given = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    edited = api.create(
        model=painting(script, action="edit").say("A black cat.").model,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Black, like this."}, given]}],
        previous_response_id=first["id"],
        tools=[{**TOOL, "input_image_mask": mask}],
    )
    assert (edited["output"][0]["action"], edited["output"][0]["result"]) == ("edit", "TkVX")
    asked = drawing.asked[1]
    assert (asked.path, asked.fields["prompt"]) == ("/images/edits", "A cat")
    picture = base64.b64decode(PNG)
    assert asked.files == [(name, "image/png", picture) for name in ("image[]", "image[]", "mask")]


def test_without_an_image_an_edit_fails(api: Api, script: Script, drawing: ImageServer) -> None:
    tools = [{**TOOL, "action": "edit"}]
    response = api.create(model=painting(script).say("I cannot.").model, input="Draw.", tools=tools)
    call = response["output"][0]
    assert (call["status"], call["result"], call["error"]["code"]) == ("failed", None, "invalid_request")
    assert drawing.asked == []


def test_what_a_server_refuses_stands_in_the_item(ask: Ask, script: Script, drawing: ImageServer) -> None:
    drawing.refuse(400, "Not this.", code="moderation_blocked")
    response = ask(model=painting(script).say("I may not.").model, **ASKED)
    call = response["output"][0]
    assert (response["status"], call["status"]) == ("completed", "failed")
    assert "Not this." in call["error"]["message"]
    assert "Not this." in script.messages[1][-1]["content"]


def test_a_model_that_sees_no_images_reads_a_note(api: Api, script: Script, drawing: ImageServer) -> None:
    drawing.draw(PNG)
    api.create(model=painting(describe(script, vision=False)).say("There.").model, **ASKED)
    assert "cannot read images" in script.messages[1][-1]["content"][0]["text"]


def test_a_choice_forces_it(api: Api, script: Script, drawing: ImageServer) -> None:
    drawing.draw()
    api.create(model=painting(script).say("Done.").model, tool_choice=TOOL, **ASKED)
    assert script.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "image_generation"}}


def test_without_a_model_it_says_what_to_configure(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", **ASKED})
    assert error(answer) == (400, "tools[0].type", "unsupported_value")
    assert "IMAGE_MODEL" in answer.json()["error"]["message"]


def test_a_model_that_the_key_may_not_use_is_refused(make_api: MakeApi, script: Script, drawing: ImageServer) -> None:
    api = make_api(allowed_models=[script.model])
    tools = [{**TOOL, "model": "somebody-elses"}]
    answer = api.post("/responses", {"model": script.model, "input": "Draw.", "tools": tools})
    assert error(answer) == (400, "tools[0].model", "model_not_found")
    assert drawing.asked == []


@pytest.mark.parametrize(
    ("field", "value"), [("complexity", "low"), ("frame_count", 2), ("svg", {}), ("output_format", "gif")]
)
def test_what_no_server_draws_is_refused(api: Api, field: str, value: Any) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Draw.", "tools": [{**TOOL, field: value}]})
    assert (error(answer)[0], error(answer)[1]) == (400, f"tools[0].{field}")


def test_a_mask_that_is_no_image_is_refused(api: Api, script: Script, drawing: ImageServer) -> None:
    tools = [{**TOOL, "input_image_mask": {"image_url": "data:text/plain;base64,aGk="}}]
    answer = api.post("/responses", {"model": script.model, "input": "Draw.", "tools": tools})
    assert error(answer)[1] == "tools[0].input_image_mask.image_url"
    assert drawing.asked == []


def test_a_key_without_the_tool_is_refused(make_api: MakeApi) -> None:
    answer = make_api(tools=["shell"]).post("/responses", {"model": "m", **ASKED})
    assert error(answer) == (403, "tools[0].type", "tool_not_allowed")
