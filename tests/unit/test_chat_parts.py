"""How parts are written for models that differ, and what stands in place of what cannot be sent."""

from typing import Any

from conversations.items import CacheBreakpoint, ComputerScreenshot, InputFile, InputImage, InputText
from responses.engine.attachments import Attachment, AttachmentFile, AttachmentImage, AttachmentText, attachment_key
from responses.providers.chat_parts import PartWriter

URL = "https://example.com/cat.png"


def named(part: Any) -> str:
    name = attachment_key(part)
    assert name is not None
    return name


def test_a_lone_text_is_a_plain_string() -> None:
    assert PartWriter().content([InputText(text="Hi")]) == "Hi"
    assert PartWriter().content([]) == []


def test_upstreams_are_told_up_to_where_to_cache() -> None:
    mark = CacheBreakpoint(mode="explicit", ttl="12h")
    parts = [InputText(text="Hi", prompt_cache_breakpoint=mark)]
    told = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    assert PartWriter().content(parts) == [{"type": "text", "text": "Hi", **told}]
    image = InputImage(image_url=URL, prompt_cache_breakpoint=mark)
    assert PartWriter().part(image) == {"type": "image_url", "image_url": {"url": URL}, **told}


def test_what_was_found_takes_the_place_of_a_part() -> None:
    image, file = InputImage(file_id="file-1", detail="low"), InputFile(file_id="file-1")
    found: dict[str, Attachment] = {
        named(image): AttachmentImage(url="data:x"),
        named(file): AttachmentFile(filename="a.pdf", url="data:y"),
    }
    writer = PartWriter(attachments=found)
    assert writer.part(image) == {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    assert writer.part(file) == {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:y"}}


def test_words_may_take_the_place_of_an_image() -> None:
    image = ComputerScreenshot(file_id="file-1")
    writer = PartWriter(attachments={named(image): AttachmentText(text="Gone.")})
    assert writer.part(image) == {"type": "text", "text": "Gone."}


def test_what_nobody_has_found_is_said_to_be_missing() -> None:
    for part in (InputFile(file_id="file-1"), InputImage(file_id="file-1"), ComputerScreenshot()):
        assert PartWriter().part(part) == {"type": "text", "text": "[This file is not available any more.]"}


def test_a_model_that_cannot_see_is_told_of_the_images_of_its_tools() -> None:
    text, beside = PartWriter(vision=False).tool_output([InputText(text="Look:"), InputImage(image_url=URL)])
    assert text == "Look:"
    assert beside == [{"type": "text", "text": "[Image omitted: this model cannot read images.]"}]


def test_the_same_data_under_another_name_is_another_file() -> None:
    names = {named(InputFile(filename=name, file_data=data)) for name in ("a", "b") for data in ("eA==", "eQ==")}
    assert len(names) == 4
    assert named(InputFile(filename="a", file_data="eA==")) in names
