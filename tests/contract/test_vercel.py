"""The unmodified Vercel AI SDK in Node: an agent calls a tool, with and without streaming."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Caller
from tests.support.upstream import Script
from tests.support.web import ROOT, WebProcess

PROJECT = Path(__file__).with_name("vercel")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def installed() -> Path:
    """The Node project with its locked packages, installed again only if the lock file changes."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("The Vercel AI SDK needs Node and npm.")
    home = ROOT / ".test-run" / "vercel"
    lock = home / "package-lock.json"
    wanted = (PROJECT / "package-lock.json").read_bytes()
    if not (home / "installed").exists() or lock.read_bytes() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(PROJECT, home)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], home)
        (home / "installed").touch()
    shutil.copy(PROJECT / "agent.mjs", home)
    return home


def _run(command: list[str], home: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=home, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("mode", ["generate", "stream"])
def test_an_agent_calls_a_tool_and_answers(
    installed: Path, web: WebProcess, caller: Caller, script: Script, mode: str
) -> None:
    script.call(look='{"place": "sofa"}').say("A ", "cat.")
    address = {"OPENAI_BASE_URL": f"{web.url}/v1", "OPENAI_API_KEY": caller.secret}
    result: dict[str, Any] = json.loads(_run(["node", "agent.mjs", script.model, mode], installed, **address))
    assert (result["text"], result["streamed"]) == ("A cat.", "A cat." if mode == "stream" else "")
    assert result["steps"] == [
        {"finish": "tool-calls", "calls": [["look", {"place": "sofa"}]]},
        {"finish": "stop", "calls": []},
    ]
    assert (result["tokens"], result["warnings"]) == (20, [])
    assert script.messages[1][-1]["content"] == "a cat on the sofa"
