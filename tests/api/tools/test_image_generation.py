"""The tool `image_generation` with an image server: streamed or not, in the foreground and in the background."""

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
def images(api: Api) -> Iterator[ImageServer]:
    """Start an image server whose model is the default of the team of `api`."""
    with image_server() as running:
        model = f"painter-{uuid.uuid4().hex[:8]}"
        services.add_upstream(name=model, base_url=running.url, models=[model])
        with scope.every_team():
            Team.objects.filter(pk=api.caller.team.pk).update(image_model=model)
        yield running


def generating(script: Script, **arguments: Any) -> Script:
    return script.call(image_generation=orjson.dumps({"prompt": "A cat", **arguments}).decode())


def partial(index: int, content: str) -> Json:
    return {"type": "image_generation.partial_image", "partial_image_index": index, "b64_json": content}


def test_the_image_is_returned_in_an_item(ask: Ask, api: Api, script: Script, images: ImageServer) -> None:
    images.draw(PNG, size="1024x1024", quality="high", output_format="png")
    response = ask(model=generating(script).say("There it is.").model, **ASKED)
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
    assert [(one.path, one.fields["prompt"]) for one in images.asked] == [("/images/generations", "A cat")]
    *_, result, shown = script.messages[1]
    assert (result["role"], result["tool_call_id"]) == ("tool", "call_image_generation")
    assert result["content"].endswith("[Image 1: it follows in a user message.]")
    assert shown["content"][0]["text"] == f"Image 1 of the output of 'image_generation' (call {call['id']}):"
    assert shown["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    with scope.team(api.caller.team.pk):
        row = UsageRecord.objects.get(endpoint="images")
    assert (row.object_id, row.input_tokens, row.output_tokens) == (response["id"], 7, 40)


def test_tool_settings_are_forwarded(api: Api, script: Script, images: ImageServer) -> None:
    images.draw()
    settings = {"size": "1536x1024", "quality": "low", "background": "transparent", "output_format": "webp"}
    more = {"output_compression": 50, "moderation": "low", "input_fidelity": "high"}
    tools = [{**TOOL, **settings, **more}]
    response = api.create(model=generating(script).say("Done.").model, input="Draw.", tools=tools)
    assert {**settings, **more}.items() <= images.asked[0].fields.items()
    assert response["tools"] == tools
    assert settings.items() <= response["output"][0].items()


def test_partial_images_are_streamed(api: Api, script: Script, images: ImageServer) -> None:
    gate = Gate()
    done = {"type": "image_generation.completed", "b64_json": PNG, "size": "8x8", "usage": USAGE}
    images.stream(partial(0, "AAAA"), gate, partial(1, "BBBB"), done)
    body = {"model": generating(script).say("Done.").model, "input": "Draw.", "tools": [{**TOOL, "partial_images": 2}]}
    with api.stream("/responses", **body) as live:
        first = next(event for event in live.events if event["type"].endswith("partial_image"))
        assert (first["partial_image_index"], first["partial_image_b64"]) == (0, "AAAA")
        gate.open()
        events = live.rest()
    names = [name.rpartition(".")[2] for name in types(events)]
    assert names[:3] == ["partial_image", "completed", "done"]
    assert events[2]["item"]["result"] == PNG
    assert images.asked[0].fields["partial_images"] == 2


def test_the_stream_has_the_documented_events(api: Api, script: Script, images: ImageServer) -> None:
    images.draw()
    events = api.events(model=generating(script).say("Done.").model, **ASKED)
    assert types(events)[2:7] == [
        "response.output_item.added",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.generating",
        "response.image_generation_call.completed",
        "response.output_item.done",
    ]


def test_an_edit_gets_the_images_of_the_conversation(api: Api, script: Script, images: ImageServer) -> None:
    images.draw(PNG)
    first = api.create(model=generating(script).say("A cat.").model, **ASKED)
    images.draw("TkVX")
    mask = {"image_url": f"data:image/png;base64,{PNG}"}
    given = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    edited = api.create(
        model=generating(script, action="edit").say("A black cat.").model,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Black, like this."}, given]}],
        previous_response_id=first["id"],
        tools=[{**TOOL, "input_image_mask": mask}],
    )
    assert (edited["output"][0]["action"], edited["output"][0]["result"]) == ("edit", "TkVX")
    asked = images.asked[1]
    assert (asked.path, asked.fields["prompt"]) == ("/images/edits", "A cat")
    picture = base64.b64decode(PNG)
    assert asked.files == [(name, "image/png", picture) for name in ("image[]", "image[]", "mask")]


def test_an_edit_without_an_image_fails(api: Api, script: Script, images: ImageServer) -> None:
    tools = [{**TOOL, "action": "edit"}]
    response = api.create(model=generating(script).say("I cannot.").model, input="Draw.", tools=tools)
    call = response["output"][0]
    assert (call["status"], call["result"], call["error"]["code"]) == ("failed", "", "invalid_request")
    assert images.asked == []


def test_a_rejection_by_the_server_is_in_the_item(ask: Ask, script: Script, images: ImageServer) -> None:
    images.refuse(400, "Not this.", code="moderation_blocked")
    response = ask(model=generating(script).say("I may not.").model, **ASKED)
    call = response["output"][0]
    assert (response["status"], call["status"]) == ("completed", "failed")
    assert "Not this." in call["error"]["message"]
    assert "Not this." in script.messages[1][-1]["content"]


def test_a_model_without_vision_gets_a_note_instead_of_the_image(api: Api, script: Script, images: ImageServer) -> None:
    images.draw(PNG)
    api.create(model=generating(describe(script, vision=False)).say("There.").model, **ASKED)
    assert script.messages[1][-1]["role"] == "tool"
    assert "cannot read images" in script.messages[1][-1]["content"]


def test_tool_choice_forces_image_generation(api: Api, script: Script, images: ImageServer) -> None:
    images.draw()
    api.create(model=generating(script).say("Done.").model, tool_choice=TOOL, **ASKED)
    assert script.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "image_generation"}}


def test_a_missing_image_model_is_reported_with_its_setting(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", "tool_choice": TOOL, **ASKED})
    assert error(answer) == (400, "tools[0].type", "unsupported_value")
    assert "IMAGE_MODEL" in answer.json()["error"]["message"]


def test_an_image_model_the_key_may_not_use_is_rejected(make_api: MakeApi, script: Script, images: ImageServer) -> None:
    api = make_api(allowed_models=[script.model])
    tools = [{**TOOL, "model": "somebody-elses"}]
    answer = api.post("/responses", {"model": script.model, "input": "Draw.", "tools": tools})
    assert error(answer) == (400, "tools[0].model", "model_not_found")
    assert images.asked == []


@pytest.mark.parametrize(
    ("field", "value"), [("complexity", "low"), ("frame_count", 2), ("svg", {}), ("output_format", "gif")]
)
def test_unsupported_settings_are_rejected(api: Api, field: str, value: Any) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Draw.", "tools": [{**TOOL, field: value}]})
    assert (error(answer)[0], error(answer)[1]) == (400, f"tools[0].{field}")


def test_a_mask_that_is_not_an_image_is_rejected(api: Api, script: Script, images: ImageServer) -> None:
    tools = [{**TOOL, "input_image_mask": {"image_url": "data:text/plain;base64,aGk="}}]
    answer = api.post("/responses", {"model": script.model, "input": "Draw.", "tools": tools})
    assert error(answer)[1] == "tools[0].input_image_mask.image_url"
    assert images.asked == []


def test_a_key_without_the_tool_is_rejected(make_api: MakeApi) -> None:
    answer = make_api(tools=["shell"]).post("/responses", {"model": "m", **ASKED})
    assert error(answer) == (403, "tools[0].type", "tool_not_allowed")
