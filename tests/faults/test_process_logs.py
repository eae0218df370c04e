"""Logs of worker and beat: every line is JSON, and wake-ups that find no work are not logged."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.work import heartbeats
from tests.support.waiting import eventually
from tests.support.web import ROOT
from tests.support.workers import running_worker

pytestmark = pytest.mark.slow


def parsed(output: str) -> list[dict[str, Any]]:
    """Return the lines of a log, of which each must be JSON, except for the one that Celery writes at its end."""
    lines = [line for line in output.splitlines() if line and line != "worker: Warm shutdown (MainProcess)"]
    assert [line for line in lines if not line.startswith("{")] == []
    return [json.loads(line) for line in lines]


@pytest.fixture
def beat(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A scheduler with a schedule of its own, and its log."""
    log = tmp_path / "beat.log"
    with log.open("wb") as output:
        environment = {**os.environ, "STATE_DIR": str(tmp_path)}
        command = [sys.executable, "manage.py", "beat"]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process, log
        finally:
            process.kill()
            process.wait()


@pytest.mark.nightly
def test_worker_and_beat_write_json_and_no_wake_ups(
    beat: tuple[subprocess.Popen[bytes], Path], upstream: object
) -> None:
    process, log = beat
    with running_worker() as worker:
        # Beat sends each task at once after its first start, then the queue wakes the worker.
        eventually(lambda: [one for one in heartbeats.live_processes() or () if "sent_at" in str(one)], seconds=60)
        worker.stop()
        lines = parsed(worker.output())
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    lines += parsed(log.read_text())
    assert {"celery.beat", "celery.worker.strategy", "celery.app.trace"}.isdisjoint(one["logger"] for one in lines)
    assert all({"event", "level", "ts"} <= one.keys() for one in lines)
    assert any(one["event"] == "the worker claims background responses" for one in lines)
