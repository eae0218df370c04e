"""The sandbox service: state between calls, files, speed, authentication, and cleanup when it dies."""

import asyncio
import json
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from containers.services import check_sandbox
from core.errors import Overloaded, UnsupportedValue
from sandbox.client import ContainerGone, OperationFailed, SandboxClient, SandboxFull, SandboxUnavailable
from sandbox.frames import receive
from sandbox.service import Configuration, Misconfigured
from tests.support.machine_clock import machine_time
from tests.support.sandboxes import Sandbox, asked, family, names, running_sandbox
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def own() -> Iterator[Sandbox]:
    """A service for this test, with one spare container and a limit of two."""
    where = f"{tempfile.gettempdir()}/own-{os.getpid()}"
    with running_sandbox(where, "a-token", {"SANDBOX_MAX_CONTAINERS": "2"}) as running:
        yield running


def make(service: Sandbox, name: str) -> SandboxClient:
    asked(service.client.create(name, memory="1g", idle=600))
    return service.client


def first_call(service: Sandbox, name: str) -> float:
    """Return the seconds to create a container and get the result of its first call."""
    eventually(lambda: len(family(service.process.pid)) == 3)
    began = time.perf_counter()
    assert asked(make(service, name).run(name, "6 * 7", seconds=60)).value == "42"
    took = time.perf_counter() - began
    asked(service.client.delete(name))
    return took


def test_a_call_starts_in_less_than_150_ms(own: Sandbox) -> None:
    """Measures the best of five calls, because other load on the machine slows down single calls."""
    assert min(first_call(own, f"cntr_{number}") for number in range(5)) < 0.15


def test_variables_persist_and_output_is_reported(own: Sandbox) -> None:
    client = make(own, "cntr_1")
    assert asked(client.run("cntr_1", "x = 20\nprint('hello')", seconds=60)).stdout == "hello\n"
    assert asked(client.run("cntr_1", "x * 2", seconds=60)).value == "40"
    failed = asked(client.run("cntr_1", "x / 0", seconds=60)).error or ""
    assert failed.startswith("Traceback")
    assert "ZeroDivisionError" in failed
    assert "interpreter.py" not in failed


def test_a_command_reports_its_exit_status(own: Sandbox) -> None:
    ran = asked(make(own, "cntr_1").shell("cntr_1", "pwd; echo no >&2; exit 3", seconds=60))
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("/mnt/data\n", "no\n", 3)


def test_files_can_be_uploaded_and_downloaded(own: Sandbox) -> None:
    client = make(own, "cntr_1")
    asked(client.write("cntr_1", "/mnt/data/in.txt", b"12"))
    asked(client.run("cntr_1", "open('out.txt', 'w').write(open('in.txt').read() * 2)", seconds=60))
    assert [entry.path for entry in asked(client.files("cntr_1"))] == ["/mnt/data/in.txt", "/mnt/data/out.txt"]
    assert asked(client.read("cntr_1", "/mnt/data/out.txt")) == b"1212"
    with pytest.raises(OperationFailed):
        asked(client.read("cntr_1", "/mnt/data/nothing"))


def test_the_number_of_containers_is_limited(own: Sandbox) -> None:
    client = make(own, "cntr_1")
    make(own, "cntr_2")
    with pytest.raises(SandboxFull):
        make(own, "cntr_3")
    asked(client.delete("cntr_1"))
    make(own, "cntr_3")


def test_containers_larger_than_the_limit_are_rejected(own: Sandbox) -> None:
    with pytest.raises(SandboxFull):
        asked(own.client.create("cntr_1", memory="4g", idle=600))
    assert not asked(own.client.info()).supports_memory("4g")


def test_an_idle_container_is_removed(own: Sandbox) -> None:
    asked(own.client.create("cntr_1", memory="1g", idle=0.1))
    eventually(lambda: len(family(own.process.pid)) == 3)
    with pytest.raises(ContainerGone):
        asked(own.client.run("cntr_1", "1", seconds=60))


def test_one_owner_gets_at_most_half_of_the_containers(own: Sandbox) -> None:
    asked(own.client.create("cntr_1", owner="team_1", memory="1g", idle=600))
    with pytest.raises(SandboxFull):
        asked(own.client.create("cntr_2", owner="team_1", memory="1g", idle=600))
    asked(own.client.create("cntr_3", owner="team_2", memory="1g", idle=600))


def test_a_call_without_its_client_is_stopped(own: Sandbox) -> None:
    """The call stops long before its time limit, and the container keeps its files."""
    client = make(own, "cntr_1")

    async def leave() -> None:
        code = "open('begun', 'w').close()\nimport subprocess\nsubprocess.run(['sleep', '60'])"
        call = asyncio.create_task(client.run("cntr_1", code, seconds=60))
        await asyncio.to_thread(eventually, lambda: "sleep" in names(own), seconds=20)
        call.cancel()
        await asyncio.wait({call})

    asyncio.run(leave())
    began = machine_time()
    assert asked(client.run("cntr_1", "import os\nos.listdir()", seconds=60)).value == "['begun']"
    assert machine_time() - began < 15


def test_lone_surrogates_in_outputs_are_replaced(own: Sandbox) -> None:
    client = make(own, "cntr_1")
    assert "?" in (asked(client.run("cntr_1", "raise ValueError('\\ud800')", seconds=60)).error or "")


def test_a_large_file_is_read_in_pieces(own: Sandbox) -> None:
    client = make(own, "cntr_1")
    asked(client.run("cntr_1", "open('large', 'wb').write(b'x' * 1_500_000)", seconds=60))
    first = asked(client.read("cntr_1", "/mnt/data/large"))
    rest = asked(client.read("cntr_1", "/mnt/data/large", offset=len(first)))
    assert first + rest == b"x" * 1_500_000
    assert asked(client.read("cntr_1", "/mnt/data/large", offset=1_500_000)) == b""


def test_unauthenticated_bodies_are_not_read(own: Sandbox) -> None:
    """The answer arrives before any of the announced bytes was sent."""

    async def announce() -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(own.client.address)
        head = json.dumps({"op": "write", "token": "another-token", "size": 500_000_000}).encode()
        writer.write(struct.pack(">I", len(head)) + head)
        answer = await receive(reader)
        writer.close()
        return answer.head

    assert asyncio.run(announce())["refused"] == "unauthorized"


def test_unauthenticated_requests_are_rejected(own: Sandbox) -> None:
    stranger = SandboxClient(address=own.client.address, token="another-token")
    with pytest.raises(SandboxUnavailable, match="SANDBOX_TOKEN"):
        asked(stranger.create("cntr_1", memory="1g", idle=600))


def test_all_containers_die_with_the_service(own: Sandbox) -> None:
    make(own, "cntr_1")
    children = family(own.process.pid)
    assert len(children) >= 3
    own.process.kill()
    own.process.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_a_missing_bubblewrap_is_reported() -> None:
    where = f"{tempfile.gettempdir()}/without-{os.getpid()}"
    with running_sandbox(where, "a-token", {"PATH": "/nowhere"}) as running:
        with pytest.raises(SandboxUnavailable, match=r"bubblewrap is not installed \(apt-get install bubblewrap\)"):
            asked(running.client.info())
        with pytest.raises(SandboxUnavailable, match="bubblewrap is not installed"):
            make(running, "cntr_1")


def test_an_unreadable_python_is_reported() -> None:
    where = f"{tempfile.gettempdir()}/pythonless-{os.getpid()}"
    with (
        running_sandbox(where, "a-token", {"SANDBOX_PYTHON": "/nowhere/python"}) as running,
        pytest.raises(SandboxUnavailable, match="/nowhere/python cannot run inside bubblewrap"),
    ):
        asked(running.client.info())


def test_an_unreachable_service_is_reported() -> None:
    with pytest.raises(SandboxUnavailable, match="does not answer"):
        asked(SandboxClient(address="/nowhere/socket", token="a-token").info())


def test_requests_get_503_while_the_service_does_not_answer() -> None:
    """A configured service will be back soon. Without a configured service, requests get 400."""
    check = partial(check_sandbox, "1g", param="container", memory_param="memory_limit")
    with override_settings(SANDBOX_URL="/nowhere/socket"), pytest.raises(Overloaded) as refused:
        asked(check())
    assert refused.value.headers["retry-after"]
    with override_settings(SANDBOX_URL=""), pytest.raises(UnsupportedValue, match="no sandbox service is configured"):
        asked(check())


def test_a_service_without_a_token_does_not_start() -> None:
    with pytest.raises(Misconfigured, match="SANDBOX_TOKEN"):
        Configuration.parse({})
    with pytest.raises(Misconfigured, match="SANDBOX_MAX_MEMORY"):
        Configuration.parse({"SANDBOX_TOKEN": "x", "SANDBOX_MAX_MEMORY": "2g"})
