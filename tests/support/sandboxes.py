"""The sandbox service as a process, as in production."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import orjson

from sandbox.client import SandboxClient, SandboxUnavailable
from tests.support.programs import need
from tests.support.waiting import eventually
from tests.support.web import ROOT

Answer = TypeVar("Answer")
CODE_INTERPRETER: dict[str, Any] = {"type": "code_interpreter", "container": {"type": "auto"}}


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A running service with a client."""

    client: SandboxClient
    process: "subprocess.Popen[bytes]"


def code(text: str) -> str:
    """Return the arguments of a call that runs this program."""
    return orjson.dumps({"code": text}).decode()


def asked(question: "Coroutine[Any, Any, Answer]") -> Answer:
    """Run a request of the client and return its result."""
    return asyncio.run(question)


def fault(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """Return the error object of a response with this status."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()["error"]
    return body


def family(pid: int) -> set[int]:
    """Return the ids of all running descendants of a process."""
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
    """Return the names of all programs that a service is running."""
    found = set()
    for pid in family(service.process.pid):
        with suppress(OSError):
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


@contextmanager
def running_sandbox(where: str, token: str, variables: Mapping[str, str] | None = None) -> Iterator[Sandbox]:
    """Run a service that is ready, and stop it with all its containers at the end. Needs bubblewrap, as `need` does."""
    need("bwrap", package="bubblewrap")
    client = SandboxClient(address=where, token=token)
    with tempfile.TemporaryFile() as output:
        settings = {
            "SANDBOX_LISTEN": where,
            "SANDBOX_TOKEN": token,
            "SANDBOX_MAX_CONTAINERS": "500",
            **(variables or {}),
        }
        process = subprocess.Popen(
            [sys.executable, "manage.py", "sandbox"],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            eventually(lambda: _answers(client, process), seconds=60)
            yield Sandbox(client=client, process=process)
        finally:
            process.terminate()
            process.wait(60)
            Path(where).unlink(missing_ok=True)


def _answers(client: SandboxClient, process: "subprocess.Popen[bytes]") -> bool:
    # A service that cannot create containers is ready as well.
    assert process.poll() is None, "the sandbox service has ended"
    try:
        return bool(asked(client.info()))
    except SandboxUnavailable as reason:
        return "does not answer" not in str(reason)
