"""Images in an input, by URL, data or file id. An invalid one gets a 400 with its path."""

from typing import Any

import pytest

from tests.support.api import Api, error, ok
from tests.support.documents import data_url, png
from tests.support.file_server import FileServer
from tests.support.model_capabilities import describe
from tests.support.upstream import Script

PNG = data_url(png(), "image/png")
# Loads at once, and needs no server.
REMOTE = data_url(png(), "image/png")
TEXT = {"type": "input_text", "text": "What is this?"}


def image(url: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"type": "input_image", **({"image_url": url} if url else {}), **fields}


def image_input(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [TEXT, *parts]}]


def upload(api: Api, content: bytes, name: str = "a.png") -> str:
    made = api.request("POST", "/files", files={"file": (name, content)}, data={"purpose": "vision"})
    file_id: str = ok(made)["id"]
    return file_id


def seen(script: Script, call: int = 0, message: int = -1) -> list[dict[str, Any]]:
    """Return the images in a message that the upstream received."""
    content = script.messages[call][message]["content"]
    return [part["image_url"] for part in content if part["type"] == "image_url"]


def test_an_image_as_data_is_forwarded_unchanged(api: Api, script: Script) -> None:
    api.create(model=script.say("A cat.").model, input=image_input(image(PNG)))
    assert seen(script) == [{"url": PNG}]


def test_a_url_is_forwarded_to_an_upstream_that_downloads_images(api: Api, script: Script) -> None:
    describe(script, inline_images=False).say("A cat.")
    url = "https://example.com/cat.png"
    api.create(model=script.model, input=image_input(image(url)))
    assert seen(script) == [{"url": url}]
    answer = api.post("/responses", {"model": script.model, "input": image_input(image("https://127.0.0.1/"))})
    assert error(answer) == (400, "input[0].content[1].image_url", "url_not_allowed")


def test_an_image_of_a_conversation_that_may_not_be_fetched_is_noted(api: Api, script: Script) -> None:
    stored = [image(url) for url in ("https://169.254.169.254/", "file:///etc/passwd", "gs://bucket/cat.png")]
    made = ok(api.post("/conversations", {"items": image_input(*stored)}))
    api.create(model=script.say("Nothing.").model, input="And?", conversation=made["id"])
    content = script.messages[0][0]["content"]
    assert [part["type"] for part in content] == ["text"] * 4
    assert all("no longer available" in part["text"] for part in content[1:])


@pytest.mark.slow
def test_a_repeated_image_counts_each_time(reaching: Api, script: Script, file_server: FileServer) -> None:
    url = file_server.put("/large", png() + bytes(9_000_000), "image/png")
    body = {"model": script.model, "input": image_input(*[image(url)] * 6)}
    assert error(reaching.post("/responses", body)) == (400, "input[0].content[6].image_url", "file_too_large")
    assert file_server.asked == ["/large"]


def test_chat_completions_send_a_downloaded_image(reaching: Api, script: Script, file_server: FileServer) -> None:
    url = file_server.put("/dot", png(), "text/plain")
    part = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    body = {"model": script.say("A dot.").model, "messages": [{"role": "user", "content": [part]}], "store": True}
    made = ok(reaching.post("/chat/completions", body))
    assert seen(script) == [{"url": PNG, "detail": "low"}]
    listed = ok(reaching.get(f"/chat/completions/{made['id']}/messages"))["data"][0]
    assert listed["content_parts"] == [part]


@pytest.mark.parametrize("url", ["https://169.254.169.254/", "http://[::ffff:7f00:1]/", "https://2130706433/"])
def test_no_endpoint_sends_a_private_url_to_an_upstream(api: Api, script: Script, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    bodies: dict[str, tuple[dict[str, Any], str]] = {
        "/responses": ({"input": image_input(image(url))}, "input[0].content[1].image_url"),
        "/responses/input_tokens": ({"input": image_input(image(url))}, "input[0].content[1].image_url"),
        "/chat/completions": (
            {"messages": [{"role": "user", "content": [part]}]},
            "messages[0].content[0].image_url.url",
        ),
        "/moderations": ({"input": [part]}, "input[0].image_url.url"),
    }
    for path, (body, param) in bodies.items():
        assert error(api.post(path, {"model": script.model, **body})) == (400, param, "url_not_allowed")
    message = {"model": script.model, "max_tokens": 9, "messages": [{"role": "user", "content": [source]}]}
    assert api.post("/messages", message).status_code == 400
    assert script.messages == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.com/a.png", "gs://b/a.png", "javascript:alert(1)"]
)
def test_chat_completions_reject_other_schemes(api: Api, script: Script, url: str) -> None:
    fields = {"images": [{"type": "image_url", "image_url": {"url": url}}]}
    for messages, param in (
        ([{"role": "user", "content": fields["images"]}], "messages[0].content[0].image_url.url"),
        ([{"role": "assistant", "content": "A", **fields}], "messages[0].images[0].image_url.url"),
    ):
        answer = api.post("/chat/completions", {"model": script.model, "messages": messages})
        assert error(answer) == (400, param, "invalid_image_url")


@pytest.mark.parametrize(("asked", "sent"), [("low", "low"), ("high", "high"), ("auto", "auto"), ("original", "high")])
def test_the_detail_is_mapped_for_upstreams(api: Api, script: Script, asked: str, sent: str) -> None:
    created = api.create(model=script.say("A cat.").model, input=image_input(image(REMOTE, detail=asked)))
    assert seen(script) == [{"url": REMOTE, "detail": sent}]
    assert api.input_items(created["id"])[0]["content"][1]["detail"] == asked


def test_an_uploaded_image_is_sent_as_data_and_stored_by_its_id(api: Api, script: Script) -> None:
    file_id = upload(api, png())
    created = api.create(model=script.say("A dot.").model, input=image_input(image(file_id=file_id)))
    assert seen(script) == [{"url": PNG}]
    part = api.input_items(created["id"])[0]["content"][1]
    assert part == {"type": "input_image", "file_id": file_id, "detail": "auto"}


def test_the_content_determines_the_image_type(api: Api, script: Script) -> None:
    file_id = upload(api, b"\xff\xd8\xff\xe0....", name="cat.png")
    api.create(model=script.say("A cat.").model, input=image_input(image(file_id=file_id)))
    assert seen(script)[0]["url"].startswith("data:image/jpeg;base64,")


def test_a_later_turn_sees_the_file_again(api: Api, script: Script) -> None:
    script.say("A dot.").say("Black.")
    first = api.create(model=script.model, input=image_input(image(file_id=upload(api, png()))))
    api.create(model=script.model, input="Which colour?", previous_response_id=first["id"])
    assert seen(script, call=1, message=0) == [{"url": PNG, "detail": "auto"}]


def test_a_later_turn_notes_a_deleted_file(api: Api, script: Script) -> None:
    script.say("A dot.").say("I cannot see it any more.")
    file_id = upload(api, png())
    first = api.create(model=script.model, input=image_input(image(file_id=file_id)))
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
def test_a_url_that_is_not_an_image_is_rejected_with_its_path(api: Api, script: Script, url: str, code: str) -> None:
    items = [{"role": "user", "content": "Hi"}, *image_input(image(url))]
    answer = api.post("/responses", {"model": script.model, "input": items})
    assert error(answer) == (400, "input[1].content[1].image_url", code)


def test_a_file_that_is_not_an_image_is_rejected(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": image_input(image(file_id=upload(api, b"hello")))}
    assert error(api.post("/responses", body)) == (
        400,
        "input[0].content[1].file_id",
        "unsupported_image_media_type",
    )


def test_another_teams_file_gets_the_answer_of_an_unknown_id(api: Api, outsider: Api, script: Script) -> None:
    foreign = upload(outsider, png())
    for file_id in ("file-000", foreign):
        answer = api.post("/responses", {"model": script.model, "input": image_input(image(file_id=file_id))})
        assert error(answer) == (400, "input[0].content[1].file_id", "image_file_not_found")
        assert answer.json()["error"]["message"] == f"No such File object: {file_id}"


def test_an_invalid_image_stores_nothing(api: Api, script: Script) -> None:
    api.post("/responses", {"model": script.model, "input": image_input(image("nonsense"))})
    assert ok(api.get("/responses"))["data"] == []


def test_an_image_file_requires_the_scope_to_read_files(make_api: Any, script: Script) -> None:
    api = make_api(scopes=["responses.write", "files.write"])
    body = {"model": script.model, "input": image_input(image(file_id=upload(api, png())))}
    assert error(api.post("/responses", body)) == (403, None, "insufficient_scope")


# -- capabilities of the model ----------------------------------------------------------------------------------------


def test_a_model_without_vision_rejects_images(api: Api, script: Script) -> None:
    describe(script, vision=False)
    answer = api.post("/responses", {"model": script.model, "input": image_input(image(REMOTE))})
    assert error(answer) == (400, "input[0].content[1]", "unsupported_value")


def test_a_chain_with_an_image_cannot_continue_on_a_model_without_vision(
    api: Api, script: Script, other_script: Script
) -> None:
    first = api.create(model=script.say("A cat.").model, input=image_input(image(REMOTE)))
    body = {"model": describe(other_script, vision=False).model, "input": "And?", "previous_response_id": first["id"]}
    assert error(api.post("/responses", body)) == (400, "input", "unsupported_value")


def test_too_many_images_are_rejected_at_the_first_one_over_the_limit(api: Api, script: Script) -> None:
    describe(script, max_images=2).say("Two.")
    pair = image_input(image(REMOTE), image(REMOTE))
    first = api.create(model=script.model, input=pair)
    answer = api.post("/responses", {"model": script.model, "input": [*pair, *image_input(image(PNG))]})
    assert error(answer) == (400, "input[1].content[1]", "unsupported_value")
    more = {"model": script.model, "input": image_input(image(PNG)), "previous_response_id": first["id"]}
    assert error(api.post("/responses", more)) == (400, "input[0].content[1]", "unsupported_value")


def test_a_chain_with_too_many_images_for_another_model_is_rejected(
    api: Api, script: Script, other_script: Script
) -> None:
    pair = image_input(image(REMOTE), image(REMOTE))
    first = api.create(model=script.say("Two.").model, input=pair)
    body = {"model": describe(other_script, max_images=1).model, "input": "And?", "previous_response_id": first["id"]}
    assert error(api.post("/responses", body)) == (400, "input", "unsupported_value")


def test_inline_images_are_fetched_and_sent_as_data(reaching: Api, script: Script, file_server: FileServer) -> None:
    describe(script, inline_images=True).say("A dot.").say("Black.")
    url = file_server.put("/dot", png(), "image/png")
    first = reaching.create(model=script.model, input=image_input(image(url, detail="low"), image(PNG)))
    assert seen(script) == [{"url": PNG, "detail": "low"}, {"url": PNG}]
    assert reaching.input_items(first["id"])[0]["content"][1]["image_url"] == url
    file_server.files.clear()
    reaching.create(model=script.model, input="Which colour?", previous_response_id=first["id"])
    assert "no longer available" in script.messages[1][0]["content"][1]["text"]
    assert file_server.asked == ["/dot", "/dot"]


@pytest.mark.parametrize(
    ("content", "media_type", "code"),
    [
        (b"<html>", "text/html", "unsupported_image_media_type"),
        (b"hello", "application/octet-stream", "unsupported_image_media_type"),
        (b"", "image/png", "empty_image_file"),
    ],
)
def test_a_fetched_url_must_be_an_image(
    reaching: Api, script: Script, file_server: FileServer, content: bytes, media_type: str, code: str
) -> None:
    describe(script, inline_images=True)
    url = file_server.put("/x", content, media_type)
    answer = reaching.post("/responses", {"model": script.model, "input": image_input(image(url))})
    assert error(answer) == (400, "input[0].content[1].image_url", code)


def test_a_missing_image_is_rejected(reaching: Api, script: Script, file_server: FileServer) -> None:
    describe(script, inline_images=True)
    answer = reaching.post(
        "/responses", {"model": script.model, "input": image_input(image(f"{file_server.url}/none"))}
    )
    assert error(answer) == (400, "input[0].content[1].image_url", "failed_to_download_image")


@pytest.mark.parametrize("url", ["http://127.0.0.1/x.png", "https://169.254.169.254/latest", "http://10.0.0.1/x.png"])
def test_a_private_address_is_never_fetched(api: Api, script: Script, url: str) -> None:
    describe(script, inline_images=True)
    answer = api.post("/responses", {"model": script.model, "input": image_input(image(url))})
    assert error(answer) == (400, "input[0].content[1].image_url", "url_not_allowed")


# -- images in tool outputs --------------------------------------------------------------------------------------------


def test_images_of_tool_outputs_follow_after_all_outputs(api: Api, script: Script) -> None:
    script.say("Three pictures.")
    calls = [
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "draw", "input": "a dot"},
    ]
    outputs = [
        {"type": "function_call_output", "call_id": "call_1", "output": [TEXT, image(REMOTE), image(PNG)]},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": [image(file_id=upload(api, png()))]},
    ]
    api.create(model=script.model, input=[{"role": "user", "content": "Look"}, *calls, *outputs])
    messages = script.messages[0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    first, second = "[Image 1: it follows in a user message.]", "[Image 2: it follows in a user message.]"
    assert [message["content"] for message in messages[2:4]] == [f"{TEXT['text']}\n{first}\n{second}", first]
    assert [part.get("text") or part["image_url"]["url"] for part in messages[4]["content"]] == [
        "Image 1 of the output of 'look' (call call_1):",
        REMOTE,
        "Image 2 of the output of 'look' (call call_1):",
        PNG,
        "Image 1 of the output of 'draw' (call call_2):",
        PNG,
    ]


def test_an_invalid_image_of_a_tool_output_is_rejected_with_its_path(api: Api, script: Script) -> None:
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
    *_, answered, follows = script.messages[0]
    assert answered["content"] == "[Image 1: it follows in a user message.]"
    assert follows["content"][0]["text"] == "Image 1 of the output of 'computer' (call call_1):"
    assert seen(script) == [{"url": PNG}]
