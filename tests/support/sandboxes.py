"""The sandbox service as it runs in production: started, awaited, asked, ended."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest

from sandbox.client import SandboxClient, SandboxUnavailable
from tests.support.waiting import eventually
from tests.support.web import ROOT

Answer = TypeVar("Answer")
INSTALL = "There is no bubblewrap here: apt-get install -y bubblewrap"


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A service that runs, and a client of it."""

    client: SandboxClient
    process: "subprocess.Popen[bytes]"


def asked(question: "Coroutine[Any, Any, Answer]") -> Answer:
    """What the service answers, for tests that wait for it."""
    return asyncio.run(question)


def fault(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """What an error says."""
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()["error"]
    return told


def family(pid: int) -> set[int]:
    """All that a process has started, and what those have started; the dead do not count."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(folder.name)] = int(fields[1])
    found, grew = {pid}, True
    while grew:
        more = {child for child, parent in parents.items() if parent in found} - found
        grew, found = bool(more), found | more
    return found - {pid}


def names(service: Sandbox) -> set[str]:
    """The names of all programs that a service runs now."""
    found = set()
    for pid in family(service.process.pid):
        with suppress(OSError):
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


@contextmanager
def running_sandbox(where: str, token: str, variables: Mapping[str, str] | None = None) -> Iterator[Sandbox]:
    """A service that answers; ended at the end, with all its containers."""
    if shutil.which("bwrap") is None:
        pytest.skip(INSTALL)
    client = SandboxClient(address=where, token=token)
    with tempfile.TemporaryFile() as output:
        told = {"SANDBOX_LISTEN": where, "SANDBOX_TOKEN": token, "SANDBOX_MAX_CONTAINERS": "500", **(variables or {})}
        process = subprocess.Popen(
            [sys.executable, "manage.py", "sandbox"],
            cwd=ROOT,
            env={**os.environ, **told},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            eventually(lambda: _answers(client, process), seconds=60)
            yield Sandbox(client=client, process=process)
        finally:
            process.terminate()
            process.wait(15)
            Path(where).unlink(missing_ok=True)


def _answers(client: SandboxClient, process: "subprocess.Popen[bytes]") -> bool:
    """Also where it says that it can make no containers."""
    assert process.poll() is None, "the sandbox service has ended"
    try:
        return bool(asked(client.info()))
    except SandboxUnavailable as reason:
        return "does not answer" not in str(reason)
