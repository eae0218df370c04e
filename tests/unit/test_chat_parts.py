"""Content parts for various models, and replacements of parts that cannot be sent."""

from typing import Any

from conversations.items import CacheBreakpoint, ComputerScreenshot, InputFile, InputImage, InputText
from engine.attachments import Attachment, AttachmentFile, AttachmentImage, AttachmentText, attachment_key
from providers.chat_parts import PartWriter

URL = "data:image/png;base64,iVBORw0KGgo="


def named(part: Any) -> str:
    name = attachment_key(part)
    assert name is not None
    return name


def test_a_single_text_is_a_plain_string() -> None:
    assert PartWriter().content([InputText(text="Hi")]) == "Hi"
    assert PartWriter().content([]) == []


def test_prompt_cache_breakpoints_are_passed_on() -> None:
    mark = CacheBreakpoint(mode="explicit", ttl="12h")
    parts = [InputText(text="Hi", prompt_cache_breakpoint=mark)]
    breakpoint_fields = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    assert PartWriter().content(parts) == [{"type": "text", "text": "Hi", **breakpoint_fields}]
    image = InputImage(image_url=URL, prompt_cache_breakpoint=mark)
    assert PartWriter().part(image) == {"type": "image_url", "image_url": {"url": URL}, **breakpoint_fields}


def test_an_attachment_replaces_its_part() -> None:
    image, file = InputImage(file_id="file-1", detail="low"), InputFile(file_id="file-1")
    found: dict[str, Attachment] = {
        named(image): AttachmentImage(url="data:x"),
        named(file): AttachmentFile(filename="a.pdf", url="data:y"),
    }
    writer = PartWriter(attachments=found)
    assert writer.part(image) == {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    assert writer.part(file) == {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:y"}}


def test_text_may_replace_an_image() -> None:
    image = ComputerScreenshot(file_id="file-1")
    writer = PartWriter(attachments={named(image): AttachmentText(text="Gone.")})
    assert writer.part(image) == {"type": "text", "text": "Gone."}


def test_a_missing_attachment_becomes_a_note() -> None:
    for part in (InputFile(file_id="file-1"), InputImage(file_id="file-1"), ComputerScreenshot()):
        kind = "file" if isinstance(part, InputFile) else "image"
        assert PartWriter().part(part) == {"type": "text", "text": f"[This {kind} is not available any more.]"}


def test_a_web_url_that_was_not_loaded_is_not_forwarded() -> None:
    for url in ("https://169.254.169.254/", "file:///etc/passwd"):
        note = {"type": "text", "text": "[This image is not available any more.]"}
        assert PartWriter().part(InputImage(image_url=url)) == note


def test_a_model_without_vision_gets_a_note_for_tool_images() -> None:
    text, media = PartWriter(vision=False).tool_output([InputText(text="Look:"), InputImage(image_url=URL)])
    assert text == "Look:\n[Image omitted: this model cannot read images.]"
    assert media == []


def test_the_attachment_key_depends_on_filename_and_data() -> None:
    names = {named(InputFile(filename=name, file_data=data)) for name in ("a", "b") for data in ("eA==", "eQ==")}
    assert len(names) == 4
    assert named(InputFile(filename="a", file_data="eA==")) in names
