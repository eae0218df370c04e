"""How many files and images one request may have read for it: reading them is work that all teams share."""

import base64
from typing import Any

from responses.requests.attachments import MAX_READ
from tests.support.api import Api, error
from tests.support.upstream import Script


def note(number: int) -> dict[str, Any]:
    data = base64.b64encode(f"Apple {number}".encode()).decode()
    return {"type": "input_file", "filename": "a.txt", "file_data": data}


def asking(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_more_files_than_can_be_read_are_refused_with_the_limit(api: Api, script: Script) -> None:
    answer = api.post("/responses", {"model": script.model, "input": asking(*map(note, range(MAX_READ + 2)))})
    param = f"input[0].content[{MAX_READ}].file_data"
    assert error(answer) == (400, param, "array_above_max_length")
    assert f"at most {MAX_READ} of them in a request, but got {MAX_READ + 2}" in answer.json()["error"]["message"]


def test_images_by_id_count_with_the_files(api: Api, script: Script) -> None:
    image = {"type": "input_image", "file_id": "file-none"}
    answer = api.post("/responses", {"model": script.model, "input": asking(*map(note, range(MAX_READ)), image)})
    assert error(answer) == (400, f"input[0].content[{MAX_READ}].file_id", "array_above_max_length")


def test_as_many_as_the_limit_are_read_and_what_is_named_twice_counts_once(api: Api, script: Script) -> None:
    script.say("Apples.")
    api.create(model=script.model, input=asking(*map(note, range(MAX_READ)), note(0)))
    assert len(script.messages[0][0]["content"]) == MAX_READ + 1


def test_images_that_are_sent_on_as_they_are_do_not_count(api: Api, script: Script) -> None:
    script.say("Apples.")
    image = [{"type": "input_image", "image_url": f"https://images.example/{number}.png"} for number in range(101)]
    api.create(model=script.model, input=asking(*image))
    assert len(script.messages[0][0]["content"]) == len(image)
