"""Image generation in a run: order of partial images and interruption, with a generator that the test controls."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from conversations.items import StoredItem
from core.clock import now
from engine.attachments import AttachmentMap
from engine.calls.toolbox import Toolbox
from engine.events.response_body import Ending, opening
from engine.loop import Run
from engine.state import RunState
from engine.steps import Step, ToolsReturned
from responses.passthrough.images import GeneratedImage, ImageRequest
from tests.support.chunks import text
from tests.support.mcp_requests import calling
from tests.support.runs import context, events_of, on_the_wire
from tests.support.scripted import ScriptedModel, ScriptedTools
from tests.support.streams import assert_well_formed
from tools.image_generation.execution import ImageGenerationTool

TOOL = {"type": "image_generation", "partial_images": 2}
ASKED = calling(("image_generation", '{"prompt":"A"}'), ("image_generation", '{"prompt":"B"}'))
TWO = [piece for piece in ASKED.pieces if isinstance(piece, dict)]


class NoAttachments:
    """Attachments of a run without images."""

    async def load(self, items: Sequence[StoredItem], *, files: bool, inline_images: bool) -> AttachmentMap:
        """Return nothing."""
        return {}

    def file_texts(self, items: Iterable[StoredItem]) -> list[str]:
        """Return nothing."""
        return []


class FakeImageGenerator:
    """Generator that sends two partial images per request and finishes when the test allows it."""

    def __init__(self) -> None:
        self.doors = {"A": asyncio.Event(), "B": asyncio.Event()}

    async def generate(self, order: ImageRequest, partial: Callable[[int, GeneratedImage], None]) -> GeneratedImage:
        """Return an image whose content is its prompt."""
        for index in range(2):
            partial(index, GeneratedImage(content=f"{order.prompt}{index}"))
        await self.doors[order.prompt].wait()
        return GeneratedImage(content=order.prompt)


def drawing(generator: FakeImageGenerator, **options: Any) -> tuple[Run, list[Any]]:
    """Return a run with two concurrent image calls and another tool, and its first events."""
    given = context(tools=[TOOL], **options)
    images = ImageGenerationTool(TOOL, generator=generator, content=NoAttachments())
    tools = Toolbox([ScriptedTools(), images])
    run = Run(given, RunState(), model=ScriptedModel(TWO, text("Done.")), tools=tools, now=now)
    return run, opening(given.parameters)


def image_contents(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the images in the events in order, a complete one as its prompt."""
    partial = [event.get("partial_image_b64") or event.get("item", {}).get("result") for event in events]
    return [content for content in partial if content]


async def test_partial_images_of_an_early_call_are_emitted_in_call_order() -> None:
    generator, steps = FakeImageGenerator(), list[Step]()
    run, first = drawing(generator)
    generator.doors["B"].set()
    async for step in run.steps():
        steps.append(step)
        if isinstance(step, ToolsReturned):
            generator.doors["A"].set()
    events = on_the_wire([*first, *events_of(steps)])
    assert_well_formed(events)
    assert image_contents(events) == ["A0", "A1", "A", "B0", "B1", "B"]


async def test_an_interrupted_image_generation_ends_as_failed() -> None:
    run, first = drawing(FakeImageGenerator())
    steps = run.steps()
    begun: list[Step] = []
    async for step in steps:
        begun.append(step)
        if image_contents(on_the_wire(events_of(begun))):
            break
    await steps.aclose()
    end = run.interrupt(Ending(status="incomplete", incomplete_reason="max_output_tokens"))
    events = on_the_wire([*first, *events_of([*begun, end])])
    assert_well_formed(events)
    # Both images were requested.
    output = end.response["output"]
    assert [(item["type"], item["status"]) for item in output] == [("image_generation_call", "failed")] * 2
    assert all("the outcome of this call is unknown" in item["error"]["message"] for item in output)
