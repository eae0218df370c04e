"""A run that generates an image is interrupted after each step and resumed: the output has one complete image."""

import itertools
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from core.db.db_threads import in_db_thread
from engine.calls.toolbox import Toolbox
from engine.loop import Run
from engine.steps import RunEnded
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response
from responses.passthrough.images import GeneratedImage, ImageRequest
from responses.requests.attachments import TeamAttachments
from responses.runs.recorder import Recorder
from responses.runs.runner import AssembledRun
from tenants import scope
from tests.support.api import Caller
from tests.support.chunks import calls, text
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import Begun, abegin, body_of, everything_written
from tools.image_generation.execution import ImageGenerationTool

TOOL: dict[str, Any] = {"type": "image_generation", "partial_images": 1}
TURNS = (calls(image_generation='{"prompt":"A cat"}'), text("Done."))


class FakeImageGenerator:
    """Sends one partial image per request; `drawn` counts the requests."""

    def __init__(self) -> None:
        self.drawn = 0

    async def generate(self, order: ImageRequest, partial: Callable[[int, GeneratedImage], None]) -> GeneratedImage:
        """Return an image."""
        self.drawn += 1
        partial(0, GeneratedImage(content="SEFMRg=="))
        return GeneratedImage(content="V0hPTEU=")


async def run_steps(begun: Begun, run: Run, recorder: Recorder, steps: int) -> bool:
    """Execute this many steps. Return whether the run has ended."""
    ended = False
    async with aclosing(run.steps()) as made:
        while steps and not ended:
            step = await anext(made)
            await recorder.record(step)
            ended, steps = isinstance(step, RunEnded), steps - 1
    await recorder.log.flush()
    await everything_written(begun)
    return ended


def resumed(begun: Begun, generator: FakeImageGenerator) -> AssembledRun:
    """Execute the rest of the run in another process."""
    tools = ImageGenerationTool(TOOL, generator=generator, content=TeamAttachments(begun.who.team_id))
    with scope.team(begun.who.team_id):
        done = Response.objects.get(pk=begun.who.response_id).turns
        model = ScriptedModel(*TURNS[done:])
        return resume.load(response_id=begun.who.response_id).build(RunFactory(model=model), Toolbox([tools]))


@pytest.mark.slow
async def test_an_image_appears_once_wherever_the_run_stopped(database: None, caller: Caller) -> None:
    for cut in itertools.count():
        generator = FakeImageGenerator()
        begun = await abegin(caller, input="Draw.", tools=[TOOL])
        tools = ImageGenerationTool(TOOL, generator=generator, content=TeamAttachments(begun.who.team_id))
        if await run_steps(begun, begun.run(ScriptedModel(*TURNS), tools), begun.recorder, cut):
            break
        rest = await in_db_thread(partial(resumed, begun, generator))
        assert await run_steps(begun, rest.run, rest.recorder, 1000)
        body = await in_db_thread(partial(body_of, begun))
        pictures = [item for item in body["output"] if item["type"] == "image_generation_call"]
        assert [item["result"] for item in pictures if item["status"] == "completed"] == ["V0hPTEU="]
        # An interrupted image is generated again; the interrupted item is listed as failed.
        assert {item["status"] for item in pictures} <= {"completed", "failed"}
        assert generator.drawn <= 2
    assert cut > 4
