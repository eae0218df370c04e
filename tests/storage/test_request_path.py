"""A plain request stays easy to follow: few modules take part in it before its commit."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from responses.lifecycle import create
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.runs.identity import RequestInfo
from responses.schema import CreateResponse, parse_create
from tenants.authentication import authenticate
from tests.support.api import Caller
from tests.support.upstream import Script
from tests.support.web import ROOT

MAX_MODULES = 28


@contextmanager
def recorded_modules() -> Iterator[set[str]]:
    """Record the modules of `responses/` whose functions are called in this block, in all threads started in it."""
    called: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(f"{ROOT}/responses/"):
            called.add(name.removeprefix(f"{ROOT}/"))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def test_a_plain_request_visits_few_modules_before_its_commit(caller: Caller, script: Script) -> None:
    principal = await authenticate(f"Bearer {caller.secret}")

    async def queue() -> set[str]:
        body: CreateResponse = parse_create({"model": script.model, "input": "Hi", "background": True})
        with recorded_modules() as called:
            request = RequestInfo(request_id="req_path")
            await create.queue_response(NewRequest(principal=principal, body=body, mode=Mode.JSON, info=request))
        return called

    # The first request also fills caches and imports modules.
    await queue()
    modules = sorted(await queue())
    assert len(modules) <= MAX_MODULES, "\n".join(modules)
