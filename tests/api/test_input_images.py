"""Images in an input: by URL, as data and as files of the team; what is wrong with one is a 400 with its path."""

from typing import Any

import pytest

from tests.support.api import Api, error, ok
from tests.support.documents import data_url, png
from tests.support.file_server import FileServer
from tests.support.model_capabilities import describe
from tests.support.upstream import Script

PNG = data_url(png(), "image/png")
REMOTE = "https://example.com/cat.png"
TEXT = {"type": "input_text", "text": "What is this?"}


def image(url: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"type": "input_image", **({"image_url": url} if url else {}), **fields}


def asking(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [TEXT, *parts]}]


def upload(api: Api, content: bytes, name: str = "a.png") -> str:
    made = api.request("POST", "/files", files={"file": (name, content)}, data={"purpose": "vision"})
    file_id: str = ok(made)["id"]
    return file_id


def seen(script: Script, call: int = 0, message: int = -1) -> list[dict[str, Any]]:
    """The images in a message that the upstream got."""
    content = script.messages[call][message]["content"]
    return [part["image_url"] for part in content if part["type"] == "image_url"]


@pytest.mark.parametrize("url", [REMOTE, PNG])
def test_an_image_by_url_is_sent_on_as_it_is(api: Api, script: Script, url: str) -> None:
    api.create(model=script.say("A cat.").model, input=asking(image(url)))
    assert seen(script) == [{"url": url}]


@pytest.mark.parametrize(("asked", "sent"), [("low", "low"), ("high", "high"), ("auto", "auto"), ("original", "high")])
def test_the_detail_is_sent_in_words_that_upstreams_know(api: Api, script: Script, asked: str, sent: str) -> None:
    created = api.create(model=script.say("A cat.").model, input=asking(image(REMOTE, detail=asked)))
    assert seen(script) == [{"url": REMOTE, "detail": sent}]
    assert api.input_items(created["id"])[0]["content"][1]["detail"] == asked


def test_a_file_of_the_team_is_sent_as_its_bytes_and_stored_as_its_id(api: Api, script: Script) -> None:
    file_id = upload(api, png())
    created = api.create(model=script.say("A dot.").model, input=asking(image(file_id=file_id)))
    assert seen(script) == [{"url": PNG}]
    part = api.input_items(created["id"])[0]["content"][1]
    assert part == {"type": "input_image", "file_id": file_id, "detail": "auto"}


def test_the_bytes_say_what_kind_of_image_a_file_is(api: Api, script: Script) -> None:
    file_id = upload(api, b"\xff\xd8\xff\xe0....", name="cat.png")
    api.create(model=script.say("A cat.").model, input=asking(image(file_id=file_id)))
    assert seen(script)[0]["url"].startswith("data:image/jpeg;base64,")


def test_a_later_turn_sees_the_file_again(api: Api, script: Script) -> None:
    script.say("A dot.").say("Black.")
    first = api.create(model=script.model, input=asking(image(file_id=upload(api, png()))))
    api.create(model=script.model, input="Which colour?", previous_response_id=first["id"])
    assert seen(script, call=1, message=0) == [{"url": PNG, "detail": "auto"}]


def test_a_later_turn_is_told_that_the_file_is_gone(api: Api, script: Script) -> None:
    script.say("A dot.").say("I cannot see it any more.")
    file_id = upload(api, png())
    first = api.create(model=script.model, input=asking(image(file_id=file_id)))
    ok(api.delete(f"/files/{file_id}"))
    api.create(model=script.model, input="Which colour?", previous_response_id=first["id"])
    text = script.messages[1][0]["content"][1]
    assert text["type"] == "text"
    assert f"{file_id} is no longer available" in text["text"]


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.com/cat.png", "invalid_image_url"),
        ("cat.png", "invalid_image_url"),
        ("https://", "invalid_image_url"),
        ("data:image/png;base64,%%%%", "invalid_base64_image"),
        ("data:image/png;base64,AAA", "invalid_base64_image"),
        ("data:image/png,AAAA", "invalid_base64_image"),
        ("data:image/png;base64,", "empty_image_file"),
        ("data:image/svg+xml;base64,AAAA", "unsupported_image_media_type"),
        ("data:text/plain;base64,AAAA", "unsupported_image_media_type"),
    ],
)
def test_a_url_that_is_no_image_is_a_400_with_its_path(api: Api, script: Script, url: str, code: str) -> None:
    items = [{"role": "user", "content": "Hi"}, *asking(image(url))]
    answer = api.post("/responses", {"model": script.model, "input": items})
    assert error(answer) == (400, "input[1].content[1].image_url", code)


def test_a_file_that_is_no_image_is_a_400(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": asking(image(file_id=upload(api, b"hello")))}
    assert error(api.post("/responses", body)) == (
        400,
        "input[0].content[1].file_id",
        "unsupported_image_media_type",
    )


def test_an_unknown_file_and_that_of_another_team_get_the_same_answer(api: Api, outsider: Api, script: Script) -> None:
    foreign = upload(outsider, png())
    for file_id in ("file-000", foreign):
        answer = api.post("/responses", {"model": script.model, "input": asking(image(file_id=file_id))})
        assert error(answer) == (400, "input[0].content[1].file_id", "image_file_not_found")
        assert answer.json()["error"]["message"] == f"No such File object: {file_id}"


def test_nothing_is_stored_of_a_request_whose_image_is_wrong(api: Api, script: Script) -> None:
    api.post("/responses", {"model": script.model, "input": asking(image("nonsense"))})
    assert ok(api.get("/responses"))["data"] == []


def test_a_key_that_may_not_read_files_cannot_have_one_read_aloud(make_api: Any, script: Script) -> None:
    api = make_api(scopes=["responses.write", "files.write"])
    body = {"model": script.model, "input": asking(image(file_id=upload(api, png())))}
    assert error(api.post("/responses", body)) == (403, None, "insufficient_scope")


# -- what the model can do ---------------------------------------------------------------------------------------------


def test_a_model_without_eyes_gets_no_image(api: Api, script: Script) -> None:
    describe(script, vision=False)
    answer = api.post("/responses", {"model": script.model, "input": asking(image(REMOTE))})
    assert error(answer) == (400, "input[0].content[1]", "unsupported_value")


def test_a_chain_with_an_image_cannot_go_on_with_a_model_without_eyes(
    api: Api, script: Script, other_script: Script
) -> None:
    first = api.create(model=script.say("A cat.").model, input=asking(image(REMOTE)))
    body = {"model": describe(other_script, vision=False).model, "input": "And?", "previous_response_id": first["id"]}
    assert error(api.post("/responses", body)) == (400, "input", "unsupported_value")


def test_more_images_than_the_model_reads_are_a_400_at_the_first_one_too_many(api: Api, script: Script) -> None:
    describe(script, max_images=2).say("Two.")
    pair = asking(image(REMOTE), image(REMOTE))
    first = api.create(model=script.model, input=pair)
    answer = api.post("/responses", {"model": script.model, "input": [*pair, *asking(image(PNG))]})
    assert error(answer) == (400, "input[1].content[1]", "unsupported_value")
    more = {"model": script.model, "input": asking(image(PNG)), "previous_response_id": first["id"]}
    assert error(api.post("/responses", more)) == (400, "input[0].content[1]", "unsupported_value")


def test_a_model_that_fetches_nothing_gets_the_bytes(reaching: Api, script: Script, file_server: FileServer) -> None:
    describe(script, inline_images=True).say("A dot.").say("Black.")
    url = file_server.put("/dot", png(), "image/png")
    first = reaching.create(model=script.model, input=asking(image(url, detail="low"), image(PNG)))
    assert seen(script) == [{"url": PNG, "detail": "low"}, {"url": PNG}]
    assert reaching.input_items(first["id"])[0]["content"][1]["image_url"] == url
    file_server.files.clear()
    reaching.create(model=script.model, input="Which colour?", previous_response_id=first["id"])
    assert "no longer available" in script.messages[1][0]["content"][1]["text"]
    assert file_server.asked == ["/dot", "/dot"]


@pytest.mark.parametrize(
    ("content", "media_type", "code"),
    [
        (b"<html>", "text/html", "failed_to_download_image"),
        (b"hello", "application/octet-stream", "unsupported_image_media_type"),
        (b"", "image/png", "empty_image_file"),
    ],
)
def test_what_is_fetched_must_be_an_image(
    reaching: Api, script: Script, file_server: FileServer, content: bytes, media_type: str, code: str
) -> None:
    describe(script, inline_images=True)
    url = file_server.put("/x", content, media_type)
    answer = reaching.post("/responses", {"model": script.model, "input": asking(image(url))})
    assert error(answer) == (400, "input[0].content[1].image_url", code)


def test_an_image_that_is_not_there_is_a_400(reaching: Api, script: Script, file_server: FileServer) -> None:
    describe(script, inline_images=True)
    answer = reaching.post("/responses", {"model": script.model, "input": asking(image(f"{file_server.url}/none"))})
    assert error(answer) == (400, "input[0].content[1].image_url", "failed_to_download_image")


@pytest.mark.parametrize("url", ["http://127.0.0.1/x.png", "https://169.254.169.254/latest", "http://10.0.0.1/x.png"])
def test_nothing_private_is_fetched(api: Api, script: Script, url: str) -> None:
    describe(script, inline_images=True)
    answer = api.post("/responses", {"model": script.model, "input": asking(image(url))})
    assert error(answer) == (400, "input[0].content[1].image_url", "url_not_allowed")


# -- tools that answer with images -------------------------------------------------------------------------------------


def test_images_of_tools_follow_behind_all_of_their_answers(api: Api, script: Script) -> None:
    script.say("Two pictures.")
    calls = [{"type": "function_call", "call_id": c, "name": "look", "arguments": "{}"} for c in ("call_1", "call_2")]
    outputs = [
        {"type": "function_call_output", "call_id": "call_1", "output": [TEXT, image(REMOTE)]},
        {"type": "function_call_output", "call_id": "call_2", "output": [image(file_id=upload(api, png()))]},
    ]
    api.create(model=script.model, input=[{"role": "user", "content": "Look"}, *calls, *outputs])
    messages = script.messages[0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in messages[2:4]] == [TEXT["text"], ""]
    assert seen(script) == [{"url": REMOTE}, {"url": PNG}]


def test_the_path_of_an_image_of_a_tool_is_named(api: Api, script: Script) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [TEXT, image("nonsense")]}
    answer = api.post("/responses", {"model": script.model, "input": [call, output]})
    assert error(answer) == (400, "input[1].output[1].image_url", "invalid_image_url")


def test_a_screenshot_may_be_a_file(api: Api, script: Script) -> None:
    action = {"type": "screenshot"}
    call = {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "pending_safety_checks": [], "action": action}
    shown = {"type": "computer_screenshot", "file_id": upload(api, png())}
    output = {"type": "computer_call_output", "call_id": "call_1", "output": shown}
    api.create(model=script.say("A dot.").model, input=[{**call, "status": "completed"}, output])
    assert seen(script) == [{"url": PNG}]
