"""The unmodified OpenAI SDK: the current version and the last one of the previous major version."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from tenants import services
from tests.contract.scenario import STEPS
from tests.support.api import Caller
from tests.support.chunks import calls, chunk, completion, text
from tests.support.sdk import checking_client
from tests.support.upstream import Cut, Script, ScriptedUpstream, stream, whole
from tests.support.web import ROOT, WebProcess

SCENARIO = Path(__file__).with_name("scenario.py")
CAT = '{"name": "Tom", "lives": 9}'
HELLO = stream(*text("Hel", "lo"))
ANSWERS = {
    "create": [HELLO],
    "retrieve": [HELLO],
    "stream": [HELLO],
    "stream_helper": [HELLO],
    "stream_left_early": [HELLO],
    "tools": [stream(chunk(reasoning="Hm."), *calls(look='{"at": "it"}')), stream(*text("A cat."))],
    "streamed_tools": [stream(*calls(look='{"at": "a"}', listen='{"to": "b"}')), stream(*text("Two cats."))],
    "feed_back": [
        stream(chunk(reasoning="Hm."), chunk(content="Well:"), *calls(look='{"at": "it"}')),
        stream(*text("A cat.")),
        stream(*text("Bye.")),
    ],
    "chain": [stream(*text(str(number))) for number in (1, 2, 3)],
    "delete": [HELLO],
    "parse": [stream(*text(CAT)), stream(*text(CAT))],
    "errors": [],
    "broken_stream": [stream(chunk(content="Hel"), Cut())],
    "raw": [HELLO],
    "chat": [whole(completion("Hello")), HELLO],
    "models": [],
    "asynchronous": [HELLO, stream(*text("Hello", " again"))],
}
Prepare = Callable[[str], Script]


@pytest.fixture
def prepare(upstream: ScriptedUpstream, database: None) -> Iterator[Prepare]:
    """Script the upstream's answers to a step. They are verified at the end."""
    with ExitStack() as stack:

        def prepared(step: str) -> Script:
            script = stack.enter_context(upstream.script())
            if step == "models":
                services.add_upstream(name="contract", base_url=upstream.url, models=[script.model])
            return script.then(*ANSWERS[step])

        yield prepared


@pytest.fixture(params=["web", "daphne_web"])
def sdk(request: pytest.FixtureRequest, caller: Caller) -> Iterator[OpenAI]:
    """The SDK of this environment with each of both web servers."""
    server: WebProcess = request.getfixturevalue(request.param)
    with OpenAI(
        base_url=f"{server.url}/v1", api_key=caller.secret, max_retries=0, http_client=checking_client()
    ) as client:
        yield client


@pytest.mark.parametrize("step", STEPS)
def test_the_current_sdk_completes_the_step(sdk: OpenAI, prepare: Prepare, step: str) -> None:
    STEPS[step](sdk, prepare(step).model)


@pytest.fixture(scope="session")
def sdk_2() -> Path:
    """The Python of an environment with the newest SDK of the previous major version."""
    home = ROOT / ".test-run" / "openai-2"
    python = home / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, home)
    _run(uv, "pip", "install", "--quiet", "--python", python, "openai>=2,<3")
    return python


def _run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_the_previous_major_version_of_the_sdk_completes_all_steps(
    sdk_2: Path, web: WebProcess, caller: Caller, prepare: Prepare
) -> None:
    steps = {step: prepare(step).model for step in STEPS}
    address = {"OPENAI_BASE_URL": f"{web.url}/v1", "OPENAI_API_KEY": caller.secret}
    assert _run(sdk_2, SCENARIO, json.dumps(steps), **address).startswith("2.")
