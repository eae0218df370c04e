"""Limit on the number of files and images of a request. Reading them takes CPU time shared by all teams."""

import base64
from typing import Any

from responses.requests.attachments import MAX_READ
from tests.support.api import Api, error
from tests.support.model_capabilities import describe
from tests.support.upstream import Script


def note(number: int) -> dict[str, Any]:
    data = base64.b64encode(f"Apple {number}".encode()).decode()
    return {"type": "input_file", "filename": "a.txt", "file_data": data}


def message_with(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_more_files_than_the_limit_are_refused(api: Api, script: Script) -> None:
    answer = api.post("/responses", {"model": script.model, "input": message_with(*map(note, range(MAX_READ + 2)))})
    param = f"input[0].content[{MAX_READ}].file_data"
    assert error(answer) == (400, param, "array_above_max_length")
    assert f"at most {MAX_READ} of them in a request, but got {MAX_READ + 2}" in answer.json()["error"]["message"]


def test_images_by_file_id_count_towards_the_limit(api: Api, script: Script) -> None:
    image = {"type": "input_image", "file_id": "file-none"}
    answer = api.post("/responses", {"model": script.model, "input": message_with(*map(note, range(MAX_READ)), image)})
    assert error(answer) == (400, f"input[0].content[{MAX_READ}].file_id", "array_above_max_length")


def test_a_file_named_twice_counts_once_towards_the_limit(api: Api, script: Script) -> None:
    script.say("Apples.")
    api.create(model=script.model, input=message_with(*map(note, range(MAX_READ)), note(0)))
    assert len(script.messages[0][0]["content"]) == MAX_READ + 1


def test_images_that_the_upstream_fetches_do_not_count_towards_the_limit(api: Api, script: Script) -> None:
    describe(script, inline_images=False).say("Apples.")
    image = [{"type": "input_image", "image_url": f"https://images.example/{number}.png"} for number in range(101)]
    api.create(model=script.model, input=message_with(*image))
    assert len(script.messages[0][0]["content"]) == len(image)


def test_downloaded_images_count_towards_the_limit(api: Api, script: Script) -> None:
    image = {"type": "input_image", "image_url": "https://images.example/1.png"}
    answer = api.post("/responses", {"model": script.model, "input": message_with(*map(note, range(MAX_READ)), image)})
    assert error(answer) == (400, f"input[0].content[{MAX_READ}].image_url", "array_above_max_length")
