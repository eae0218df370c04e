"""`python -m benchmarks visited-files`: the files that a streamed request and a background run pass through, in order.

A reader who follows a request has to open each of them. The web process and the worker run under a profiler, which
records each function of the product when it is called for the first time. Functions that idle processes also call, such
as those of heartbeats, do not count. With arguments, this module is the process that is profiled.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.load import Target
from benchmarks.stack import MANAGE, ROOT, Client, Server, Servers, is_up, running_servers, tell
from launcher.address import any_free_port, is_free

MOST_OF_A_STREAM, MOST_OF_A_RUN = 35, 30
_PRODUCT = tuple(f"{ROOT / name}{os.sep}" for name in ("platform", "responses", "conversations", "tenants"))
# Longer than the interval of everything that is repeated while nothing happens.
_IDLE_SECONDS = 12.0
_MODEL = "demo-d0"


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Print both paths. With `--check`, return 1 if one of them has more files than it may have."""
    parser = ArgumentParser(prog="python -m benchmarks visited-files")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a path is too long")
    options = parser.parse_args(arguments)
    with running_servers(directory) as servers:
        port = any_free_port()
        demo = (sys.executable, "-m", "demo_upstream", "--port", str(port))
        environment = {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
        servers.start("demo", *demo, is_ready=lambda: not is_free(host="127.0.0.1", port=port), **environment)
        key = servers.route(f"http://127.0.0.1:{port}")
        web, target = _profiled_web(servers, key=key)
        worker = _profiled(servers, "worker", "worker", is_ready=lambda: "celery@" in _log(servers, "worker"))
        client = Client(target)
        stream = partial(_stream, client)
        run = partial(_run_in_background, client)
        paths = [
            ("A streamed request", MOST_OF_A_STREAM, _path(web, servers.directory / "web.json", stream)),
            ("A background run in the worker", MOST_OF_A_RUN, _path(worker, servers.directory / "worker.json", run)),
        ]
    for title, most, calls in paths:
        files = list(dict.fromkeys(file for file, _ in calls))
        print(f"{title}: {len(files)} files, {len(calls)} functions; at most {most} files")
        for number, file in enumerate(files, 1):
            print(f"{number:4} {file}: {', '.join(name for place, name in calls if place == file)}")
    return int(options.check and any(len({file for file, _ in calls}) > most for _, most, calls in paths))


def _log(servers: Servers, name: str) -> str:
    return servers.log(name).read_text()


def _profiled(servers: Servers, name: str, *arguments: str, is_ready: Any, **environment: str) -> Server:
    argv = (sys.executable, "-m", "benchmarks.visited_files", str(servers.directory / f"{name}.json"), *arguments)
    path = f"{ROOT / 'platform'}:{ROOT}"
    return servers.start(name, *argv, is_ready=is_ready, **environment, PYTHONPATH=path)


def _profiled_web(servers: Servers, *, key: str) -> tuple[Server, Target]:
    port = any_free_port()
    url = f"http://127.0.0.1:{port}"
    is_ready = partial(is_up, f"{url}/readyz")
    address = ("--host", "127.0.0.1", "--port", str(port), "--processes", "1")
    web = _profiled(servers, "web", "web", *address, is_ready=is_ready)
    headers = {"Authorization": f"Bearer {key}"}
    return web, Target(name="platform", url=url, pid=web.process.pid, api="responses", headers=headers)


def _stream(client: Client) -> None:
    with client.open("POST", "/responses", {"model": _MODEL, "input": "Say hello", "stream": True}) as answer:
        answer.read()


def _run_in_background(client: Client) -> None:
    response, _ = client.ask("POST", "/responses", {"model": _MODEL, "input": "Say hello", "background": True})
    while response["status"] in {"queued", "in_progress"}:
        time.sleep(0.1)
        response, _ = client.ask("GET", f"/responses/{response['id']}")


def _path(server: Server, file: Path, act: Any) -> list[tuple[str, str]]:
    """Return file and name of the functions that only `act` calls, in the order of their first calls."""
    for _ in range(3):
        act()
    tell(f"{server.command.name}: {_IDLE_SECONDS:g} s without requests, then one request")
    _calls(server, file)
    time.sleep(_IDLE_SECONDS)
    idle = _calls(server, file)
    act()
    # Waits for work after the end of the response, such as the release of its limits.
    time.sleep(1)
    return [call for call in _calls(server, file) if call not in set(idle)]


def _calls(server: Server, file: Path) -> list[tuple[str, str]]:
    """Return the functions that the process has called since the last request."""
    file.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR2)
    while not file.exists():
        time.sleep(0.05)
    return [(path, name) for path, name in json.loads(file.read_text())]


def _profile(file: Path, arguments: Sequence[str]) -> None:
    """Run `manage.py` and write the functions that were called since the last signal at each `SIGUSR2`."""
    called: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PRODUCT):
            called.setdefault((frame.f_code.co_filename.removeprefix(f"{ROOT}{os.sep}"), frame.f_code.co_qualname))

    def write(*_: object) -> None:
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps([*called]))
        called.clear()
        unfinished.replace(file)

    signal.signal(signal.SIGUSR2, write)
    threading.setprofile(note)
    sys.setprofile(note)
    sys.argv = [MANAGE, *arguments]
    runpy.run_path(MANAGE, run_name="__main__")


if __name__ == "__main__":
    _profile(Path(sys.argv[1]), sys.argv[2:])
