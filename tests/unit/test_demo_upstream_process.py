"""`python -m demo_upstream` as a process: its output and its shutdown."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.machine_clock import machine_time
from tests.support.waiting import HANGS_AFTER

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the server as a process that is stopped afterwards."""
    command = [sys.executable, "-m", "demo_upstream", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def address(server: subprocess.Popen[str]) -> str:
    """Return the base URL in the server's only line of output."""
    assert server.stdout is not None
    line = re.fullmatch(r"demo upstream listening on (http://127\.0\.0\.1:\d+/v1)\n", server.stdout.readline())
    assert line is not None
    return line[1]


def test_the_demo_prints_its_base_url() -> None:
    with process("--host", "127.0.0.1", "--port", "0") as server:
        health = address(server).removesuffix("/v1") + "/health"
        assert urllib.request.urlopen(health, timeout=HANGS_AFTER).read() == b'{"status":"ok"}'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_demo_stops_immediately_while_a_request_is_answered(number: signal.Signals) -> None:
    with process("--port", "0") as server:
        host, port = address(server).removeprefix("http://").removesuffix("/v1").split(":")
        body = b'{"model": "demo-d99999", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: demo\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=HANGS_AFTER) as connection:
            connection.sendall(head.encode() + body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            begun = machine_time()
            server.send_signal(number)
            _, errors = server.communicate(timeout=HANGS_AFTER)
        assert (server.returncode, errors) == (0, "")
        assert machine_time() - begun < 9


def test_the_demo_reports_that_the_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process("--port", str(port)) as server:
            output, errors = server.communicate(timeout=HANGS_AFTER)
    assert (server.returncode, output) == (1, "")
    assert errors.startswith(f"demo upstream cannot listen on 127.0.0.1:{port}: ")
    assert errors.count("\n") == 1
