"""`manage.py up` finds the model servers of this machine, offers them and connects them."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.address import any_free_port
from tests.faults.test_up import ROOT, START_SECONDS, Up, call
from tests.support.machine_clock import machine_time
from tests.support.model_server import ANSWER, ModelServer, model_server, models, ollama
from tests.support.waiting import HANGS_AFTER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server(ollama("nomic-embed-text", "qwen3:8b")) as running:
        yield running


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    """A shared directory, because each new one initializes a database."""
    directory = ROOT / ".test-run" / f"state-{os.getpid()}-models"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def started(state_dir: Path, server: ModelServer, *arguments: str) -> Up:
    with socket_of_no_model_server() as other:
        ports = f"ollama={server.port},vllm={other.port}"
        options = ("--no-input", "--port", str(any_free_port()), *arguments)
        return Up(state_dir, *options, MODEL_SERVER_PORTS=ports).wait_until_ready()


def socket_of_no_model_server() -> Any:
    return model_server({"/": {"hello": "world"}, "/v1/models": {"detail": "not a list"}})


def say_hello(up: Up) -> str:
    answer = call(up, "/v1/responses", key=up.labelled("Key"), body={"model": "qwen3:8b", "input": "Hello"})
    text: str = answer["output"][0]["content"][0]["text"]
    return text


def test_a_found_server_is_offered_and_connected_once(state_dir: Path, server: ModelServer) -> None:
    up = started(state_dir, server)
    try:
        offered = f"python3 manage.py add_upstream --name ollama --base-url {server.base_url}"
        assert f"Ollama at {server.base_url} serves nomic-embed-text, qwen3:8b" in up.labelled("Found")
        assert offered in up.labelled("Found")
        assert up.output.count("Found") == 1
        # Nothing is connected unasked.
        assert '"model":"demo"' in up.labelled("Try it")
        assert "qwen3:8b" not in str(call(up, "/v1/models", key=up.labelled("Key")))
    finally:
        up.end()

    up = started(state_dir, server, "--connect")
    try:
        assert "is the upstream ollama" in up.labelled("Found")
        assert '"model":"qwen3:8b"' in up.labelled("Try it")
        assert say_hello(up) == ANSWER
    finally:
        up.end()

    # Once a server is connected, its operator chooses the models.
    server.pages["/v1/models"] = models("nomic-embed-text", "qwen3:8b", "other", owner="library")
    up = started(state_dir, server, "--connect")
    try:
        assert "is the upstream ollama: nomic-embed-text, qwen3:8b" in up.labelled("Found")
        assert "'id': 'other'" not in str(call(up, "/v1/models", key=up.labelled("Key")))
        assert say_hello(up) == ANSWER
    finally:
        up.end()


@pytest.mark.parametrize(("reply", "connected"), [("y", True), ("", False)])
def test_a_terminal_asks_before_it_connects(state_dir: Path, reply: str, connected: bool) -> None:
    with model_server({"/v1/models": models(f"model-{reply or 'no'}", owner="vllm")}) as vllm:
        environment = Up.variables(state_dir) | {"MODEL_SERVER_PORTS": f"vllm={vllm.port}"}
        process, terminal = in_terminal(environment)
        try:
            read_until(terminal, f"vLLM runs at {vllm.base_url} with model-{reply or 'no'}. Connect it? [y/N] ")
            os.write(terminal, f"{reply}\n".encode())
            shown = read_until(terminal, "Press Ctrl-C to stop.")
            assert ("is the upstream vllm" in shown) is connected
            assert ("add_upstream --name vllm" in shown) is not connected
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=HANGS_AFTER)
            os.close(terminal)


def in_terminal(environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start `up` as the foreground process of a new terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "manage.py", "up", "--port", str(any_free_port())],
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, text: str) -> str:
    shown, deadline = "", machine_time() + START_SECONDS
    while text not in shown and machine_time() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            with suppress(OSError):
                shown += os.read(terminal, 65536).decode(errors="replace")
    assert text in shown, shown
    return shown
