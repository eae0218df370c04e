"""Attachments of a run: loaded once per run, and again by a process that resumes it."""

import base64

import pytest
from django.conf import settings

from conversations.items import InputFile
from conversations.models import File, FileState, Purpose
from core.db.db_threads import in_db_thread
from core.errors import EgressFailed
from engine.attachments import AttachmentImage, AttachmentText
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.requests.attachments import TeamAttachments
from responses.runs.runner import AssembledRun
from tenants import scope
from tenants.capabilities import Capabilities
from tests.support.api import Caller
from tests.support.chunks import text
from tests.support.documents import data_url, png
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import abegin

WORDS = base64.b64encode(b"Seven apples").decode()


def store_file(caller: Caller, content: bytes) -> File:
    """Create a file of the caller's team with this content."""
    with scope.team(caller.team.pk):
        file = File.objects.create(
            team=caller.team,
            filename="a.png",
            purpose=Purpose.VISION,
            content_type="image/png",
            size=len(content),
            sha256="0" * 64,
            state=FileState.READY,
        )
    path = settings.STATE_DIR / "files" / file.pk[-2:] / file.pk
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return file


async def test_a_resumed_run_loads_its_files_again(database: None, caller: Caller) -> None:
    file = await in_db_thread(lambda: store_file(caller, png()))
    parts = [
        {"type": "input_image", "file_id": file.pk},
        {"type": "input_file", "filename": "a.txt", "file_data": WORDS},
    ]
    begun = await abegin(caller, input=[{"role": "user", "content": parts}])
    model = ScriptedModel(text("A dot."))

    def load_run() -> AssembledRun:
        with scope.every_team():
            return resume.load(response_id=begun.who.response_id).build(RunFactory(model=model))

    resumed = await in_db_thread(load_run)
    async for step in resumed.run.steps():
        await resumed.recorder.record(step)
    (request,) = model.requests
    assert request.attachments is not None
    found = dict(await request.attachments.load(request.items, files=False, inline_images=False))
    assert found.pop(f"image {file.pk}") == AttachmentImage(url=data_url(png(), "image/png"))
    assert list(found.values()) == [AttachmentText(text="a.txt\n\nSeven apples")]


async def test_a_run_loads_a_file_only_once(database: None, caller: Caller) -> None:
    file = await in_db_thread(lambda: store_file(caller, png()))
    begun = await abegin(caller, input=[{"role": "user", "content": [{"type": "input_image", "file_id": file.pk}]}])
    content = TeamAttachments(caller.team.pk)
    first = dict(await content.load(begun.context.items, files=False, inline_images=False))
    (settings.STATE_DIR / "files" / file.pk[-2:] / file.pk).unlink()
    assert await content.load(begun.context.items, files=False, inline_images=False) == first
    assert list(first.values()) == [AttachmentImage(url=data_url(png(), "image/png"))]


async def test_lost_content_is_reported_as_a_missing_file(database: None, caller: Caller) -> None:
    file = await in_db_thread(lambda: store_file(caller, png()))
    (settings.STATE_DIR / "files" / file.pk[-2:] / file.pk).unlink()
    begun = await abegin(caller, input=[{"role": "user", "content": [{"type": "input_image", "file_id": file.pk}]}])
    found = await TeamAttachments(caller.team.pk).load(begun.context.items, files=False, inline_images=False)
    (note,) = found.values()
    assert isinstance(note, AttachmentText)
    assert f"{file.pk} is no longer available" in note.text


@pytest.mark.slow
async def test_all_documents_of_a_context_share_one_time_limit(database: None, caller: Caller) -> None:
    slow = base64.b64encode(b"<p>a</p>" * 250_000).decode()
    parts = [
        {"type": "input_file", "filename": "a.html", "file_data": slow},
        {"type": "input_file", "filename": "b.txt", "file_data": WORDS},
    ]
    begun = await abegin(caller, input=[{"role": "user", "content": [part]} for part in parts])
    content = TeamAttachments(caller.team.pk, seconds=0.2)
    for item in begun.context.items:
        await content.load([item], files=False, inline_images=False)
    note = content.file_texts(begun.context.items)
    assert [words.split("]")[0] for words in note] == [
        f"[{name} is no longer available. It could not be loaded in time." for name in ("a.html", "b.txt")
    ]


async def test_the_attachments_of_the_request_share_that_time_limit(database: None, caller: Caller) -> None:
    part = InputFile(type="input_file", filename="b.txt", file_data=WORDS)
    with pytest.raises(EgressFailed, match="could not be loaded in time"):
        await TeamAttachments(caller.team.pk, seconds=0.0).load_required([("input[0]", part)], can=Capabilities())
