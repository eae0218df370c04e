"""Files in an input, by id, URL or data: forwarded to models that read files, and as extracted text to all others."""

import base64
from typing import Any

import pytest

from tests.support import documents
from tests.support.api import Api, error, ok
from tests.support.file_server import FileServer
from tests.support.model_capabilities import describe
from tests.support.upstream import Script

TEXT = {"type": "input_text", "text": "Sum it up."}
PDF = documents.pdf("Seven apples")


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def file_input(**file: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [TEXT, {"type": "input_file", **file}]}]


def upload(api: Api, content: bytes, name: str) -> str:
    made = api.request("POST", "/files", files={"file": (name, content)}, data={"purpose": "user_data"})
    file_id: str = ok(made)["id"]
    return file_id


def part(script: Script, call: int = 0, message: int = 0) -> dict[str, Any]:
    """Return the file part that the upstream received."""
    found: dict[str, Any] = script.messages[call][message]["content"][1]
    return found


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "Sieben Äpfel".encode(), "Sieben Äpfel"),
        ("a.md", b"# Apples\n\nSeven", "# Apples\n\nSeven"),
        ("a.json", b'{"apples": 7}', '{"apples": 7}'),
        ("a.csv", b"apples,7\n", "apples,7\n"),
        ("a.html", b"<p>Seven</p><p>apples</p>", "Seven\napples"),
        ("a.pdf", PDF, "Seven apples"),
        ("a.docx", documents.docx("Seven", "apples"), "Seven\n\napples"),
        ("a.pptx", documents.pptx("Seven apples"), "Seven apples"),
    ],
)
def test_the_text_of_a_file_is_sent_with_its_name(
    api: Api, script: Script, name: str, content: bytes, words: str
) -> None:
    api.create(model=script.say("Fruit.").model, input=file_input(filename=name, file_data=b64(content)))
    assert part(script) == {"type": "text", "text": f"{name}\n\n{words}"}


def test_file_data_may_be_a_data_url(api: Api, script: Script) -> None:
    url = documents.data_url(PDF, "application/pdf")
    api.create(model=script.say("Fruit.").model, input=file_input(filename="a.pdf", file_data=url))
    assert part(script)["text"] == "a.pdf\n\nSeven apples"


def test_an_uploaded_file_is_stored_by_its_id(api: Api, script: Script) -> None:
    file_id = upload(api, b"Seven apples", "fruit.txt")
    created = api.create(model=script.say("Fruit.").model, input=file_input(file_id=file_id))
    assert part(script)["text"] == "fruit.txt\n\nSeven apples"
    assert api.input_items(created["id"])[0]["content"][1] == {"type": "input_file", "file_id": file_id}


@pytest.mark.slow
def test_a_file_url_is_fetched_and_names_the_file(reaching: Api, script: Script, file_server: FileServer) -> None:
    url = file_server.put("/papers/My%20fruit.pdf?v=1", PDF, "application/pdf")
    created = reaching.create(model=script.say("Fruit.").model, input=file_input(file_url=url))
    assert part(script)["text"] == "My fruit.pdf\n\nSeven apples"
    assert reaching.input_items(created["id"])[0]["content"][1] == {"type": "input_file", "file_url": url}


def test_a_model_with_file_support_gets_the_file(api: Api, script: Script) -> None:
    describe(script, files=True).say("Fruit.").say("Fruit.")
    api.create(model=script.model, input=file_input(filename="a.pdf", file_data=b64(PDF)))
    api.create(model=script.model, input=file_input(file_id=upload(api, PDF, "b.pdf")))
    url = documents.data_url(PDF, "application/pdf")
    assert [part(script, call) for call in (0, 1)] == [
        {"type": "file", "file": {"filename": name, "file_data": url}} for name in ("a.pdf", "b.pdf")
    ]


def test_a_later_turn_reads_the_file_again(api: Api, script: Script) -> None:
    script.say("Fruit.").say("Seven.")
    first = api.create(model=script.model, input=file_input(filename="a.pdf", file_data=b64(PDF)))
    api.create(model=script.model, input="How many?", previous_response_id=first["id"])
    assert part(script, call=1)["text"] == "a.pdf\n\nSeven apples"


def test_a_later_turn_notes_a_deleted_file(api: Api, script: Script) -> None:
    script.say("Fruit.").say("I cannot see it any more.")
    file_id = upload(api, PDF, "a.pdf")
    first = api.create(model=script.model, input=file_input(file_id=file_id))
    ok(api.delete(f"/files/{file_id}"))
    api.create(model=script.model, input="How many?", previous_response_id=first["id"])
    assert f"{file_id} is no longer available" in part(script, call=1)["text"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("%%%%", "invalid_file"),
        ("data:application/pdf,abc", "invalid_file"),
        ("data:application/pdf;base64,", "invalid_file"),
        (b64(b"%PDF-1.7 and nothing"), "invalid_file"),
        (b64(b"   "), "invalid_file"),
        (b64(b"\x89PNG\r\n\x1a\n\x00"), "unsupported_file"),
    ],
)
def test_unreadable_data_is_rejected_with_its_path(api: Api, script: Script, data: str, code: str) -> None:
    items = [{"role": "user", "content": "Hi"}, *file_input(filename="a.pdf", file_data=data)]
    answer = api.post("/responses", {"model": script.model, "input": items})
    assert error(answer) == (400, "input[1].content[1].file_data", code)


def test_another_teams_file_gets_the_answer_of_an_unknown_id(api: Api, outsider: Api, script: Script) -> None:
    foreign = upload(outsider, PDF, "a.pdf")
    for file_id in ("file-000", foreign):
        answer = api.post("/responses", {"model": script.model, "input": file_input(file_id=file_id)})
        assert error(answer) == (404, "input[0].content[1].file_id", None)
        assert answer.json()["error"]["message"] == f"No such File object: {file_id}"


@pytest.mark.parametrize(("path", "code"), [("/none", "url_not_fetched"), ("/image", "unsupported_file")])
def test_a_url_without_a_document_is_rejected(
    reaching: Api, script: Script, file_server: FileServer, path: str, code: str
) -> None:
    file_server.put("/image", documents.png(), "image/png")
    answer = reaching.post("/responses", {"model": script.model, "input": file_input(file_url=file_server.url + path)})
    assert error(answer) == (400, "input[0].content[1].file_url", code)


def test_a_private_address_is_never_fetched(api: Api, script: Script) -> None:
    answer = api.post("/responses", {"model": script.model, "input": file_input(file_url="https://10.0.0.1/a.pdf")})
    assert error(answer) == (400, "input[0].content[1].file_url", "url_not_allowed")


@pytest.mark.parametrize("texts", [[], [TEXT]])
def test_the_text_of_a_file_is_in_the_tool_message(api: Api, script: Script, texts: list[Any]) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": b64(PDF)}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [*texts, file]}
    api.create(model=script.say("Fruit.").model, input=[call, output])
    assert [message["role"] for message in script.messages[0]] == ["assistant", "tool"]
    assert script.messages[0][1]["content"] == "\n".join([*(one["text"] for one in texts), "a.pdf\n\nSeven apples"])


def test_a_file_for_a_model_that_reads_files_follows_in_a_user_message(api: Api, script: Script) -> None:
    describe(script, files=True)
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": b64(PDF)}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [file]}
    api.create(model=script.say("Fruit.").model, input=[call, output])
    _, answered, follows = script.messages[0]
    assert answered["content"] == "[File 1 (a.pdf): it follows in a user message.]"
    assert follows["content"][0]["text"] == "File 1 (a.pdf) of the output of 'look' (call call_1):"
    assert follows["content"][1]["file"]["filename"] == "a.pdf"


def test_text_of_files_counts_as_input(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": file_input(filename="a.txt", file_data=b64(b"x" * 4000))}
    assert ok(api.post("/responses/input_tokens", body))["input_tokens"] > 1000


def test_counting_rejects_what_creating_rejects(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": file_input(filename="a.pdf", file_data="%%%%")}
    assert error(api.post("/responses/input_tokens", body)) == (400, "input[0].content[1].file_data", "invalid_file")


def test_fetching_stops_at_the_first_failure(reaching: Api, script: Script, file_server: FileServer) -> None:
    parts = [{"type": "input_file", "file_url": f"{file_server.url}/{number}"} for number in range(40)]
    answer = reaching.post("/responses", {"model": script.model, "input": [{"role": "user", "content": parts}]})
    assert error(answer) == (400, "input[0].content[0].file_url", "url_not_fetched")
    assert len(file_server.asked) <= 4
