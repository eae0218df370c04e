"""`python -m benchmarks loop-work`: what the event loop of a web process does for one request.

Counts the tasks, futures, timers, callbacks and passes of the loop, the new objects of dataclasses and the calls of
Python functions, for a JSON request and for a stream of 64 tokens that are alone in the process. Unlike times, these
counts are nearly the same on every machine. What the process does without requests is measured before, and subtracted.
The loop is asyncio's own, because the functions of uvloop cannot be counted. With arguments, this module is the process
that is counted.
"""

import asyncio
import json
import runpy
import signal
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop
from typing_extensions import override

from benchmarks.load import Target, program
from benchmarks.stack import MANAGE, ROOT, Client, Server, is_up, running_servers
from launcher.address import any_free_port

_MODEL = "mock"  # 64 tokens in one write
_WARM_UP, _REQUESTS = 20, 100
_TOTALS = ("passes", "callbacks", "tasks", "futures", "timers", "threads", "objects", "calls")
# Calls have the most parts.
_SHOWN, _LEAST_SHOWN = 400, 0.05


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Print the counts of a JSON request and a stream."""
    parser = ArgumentParser(prog="python -m benchmarks loop-work", description=__doc__)
    parser.add_argument("--requests", type=int, default=_REQUESTS, help="of each kind (default %(default)s)")
    parser.add_argument("--detailed", action="store_true", help="also show what the counts consist of")
    options = parser.parse_args(arguments)
    with running_servers(directory) as servers:
        port = any_free_port()
        upstream = f"http://127.0.0.1:{port}"
        ready = partial(is_up, f"{upstream}/health")
        servers.start("mock", str(program("mock")), "--port", str(port), is_ready=ready)
        key = servers.route(upstream)
        file, port = servers.directory / "counts.json", any_free_port()
        url = f"http://127.0.0.1:{port}"
        command = (sys.executable, "-m", "benchmarks.loop_work", str(file), "web")
        address = ("--host", "127.0.0.1", "--port", str(port), "--processes", "1")
        path = f"{ROOT / 'platform'}:{ROOT}"
        web = servers.start("web", *command, *address, is_ready=partial(is_up, f"{url}/readyz"), PYTHONPATH=path)
        headers = {"Authorization": f"Bearer {key}"}
        client = Client(Target(name="web", url=url, pid=web.process.pid, api="responses", headers=headers))
        kinds = {"JSON": partial(_ask, client, stream=False), "stream": partial(_ask, client, stream=True)}
        for act in kinds.values():
            for _ in range(_WARM_UP):
                act()
        idle = _counted(web, file, partial(time.sleep, 10.0), times=1)
        found = {name: _counted(web, file, act, times=options.requests, idle=idle) for name, act in kinds.items()}
    _print(found, detailed=options.detailed)
    return 0


def _ask(client: Client, *, stream: bool) -> None:
    with client.open("POST", "/responses", {"model": _MODEL, "input": "Hi", "stream": stream}) as answer:
        answer.read()


def _counted(
    web: Server, file: Path, act: Callable[[], None], *, times: int, idle: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the counts of one `act`; without `idle`, the counts of a second."""
    _read(web, file)
    began = time.monotonic()
    for _ in range(times):
        act()
    seconds = time.monotonic() - began
    counts = _read(web, file)
    if idle is None:
        return {name: number / seconds for name, number in counts.items()}
    return {name: (number - idle.get(name, 0) * seconds) / times for name, number in counts.items()}


def _read(web: Server, file: Path) -> dict[str, float]:
    """Return the counts since the last call."""
    file.unlink(missing_ok=True)
    web.process.send_signal(signal.SIGUSR2)
    while not file.exists():
        time.sleep(0.05)
    counts: dict[str, float] = json.loads(file.read_text())
    return counts


def _print(found: Mapping[str, Mapping[str, float]], *, detailed: bool) -> None:
    print(f"{'':12}" + "".join(f"{name:>10}" for name in found))
    for total in _TOTALS:
        print(f"{total:12}" + "".join(f"{counts.get(total, 0):10.1f}" for counts in found.values()))
    for name, counts in found.items() if detailed else ():
        for total in _TOTALS:
            _print_parts(f"{name}, {total}", {key: n for key, n in counts.items() if key.startswith(f"{total} ")})


def _print_parts(title: str, parts: Mapping[str, float]) -> None:
    if parts:
        print(f"\n{title}")
    for part, number in Counter(parts).most_common(_SHOWN):
        if number >= _LEAST_SHOWN:
            print(f"{number:8.1f}  {part.partition(' ')[2]}")


# -- the process that is counted ---------------------------------------------------------------------------------------

_counts: Counter[str] = Counter()
_calls: Counter[CodeType] = Counter()
_GENERATED = "<string>"
"""The file of the code that `dataclasses` generates."""


def _count(total: str, part: str) -> None:
    _counts[total] += 1
    _counts[f"{total} {part}"] += 1


def _name(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"wakes {_name(owner.get_coro())}"
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _place() -> str:
    """Return the function that called into asyncio."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - `inspect` takes a millisecond
    while frame is not None and "asyncio" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_qualname if frame is not None else ""


class _Loop(asyncio.SelectorEventLoop):
    """Asyncio's loop, which counts."""

    def _run_once(self) -> None:
        _counts["passes"] += 1
        super()._run_once()  # type: ignore[misc]

    @override
    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        _count("callbacks", _name(callback))
        return super().call_soon(callback, *args, context=context)

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        _count("timers", f"{_name(callback)} by {_place()}")
        return super().call_at(when, callback, *args, context=context)

    @override
    def create_future(self) -> "asyncio.Future[Any]":
        _count("futures", _place())
        return super().create_future()

    @override
    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        _count("tasks", _name(coro))
        return super().create_task(coro, **options)

    @override
    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> "asyncio.Future[Any]":
        _count("threads", _name(func))
        return super().run_in_executor(executor, func, *args)


def _note_call(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        code = frame.f_code
        _calls[code] += 1
        if code.co_filename == _GENERATED and code.co_name == "__init__":
            _counts[f"objects {type(frame.f_locals['self']).__qualname__}"] += 1


def _serve(file: Path, arguments: Sequence[str]) -> None:
    """Run `manage.py` and write the counts since the last signal at each `SIGUSR2`."""

    def write(*_: object) -> None:
        sys.setprofile(None)
        counts = dict(_counts)
        counts["calls"] = _calls.total()
        counts["objects"] = sum(number for name, number in counts.items() if name.startswith("objects "))
        for code, number in _calls.items():
            if code.co_qualname == "_LoopWriter.submit":
                # It creates a future of its own class.
                counts["futures"] += number
                counts["futures Commit"] = number
            name = f"calls {code.co_qualname} {code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_firstlineno}"
            counts[name] = counts.get(name, 0) + number
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps(counts))
        unfinished.replace(file)
        _counts.clear()
        _calls.clear()
        sys.setprofile(_note_call)

    signal.signal(signal.SIGUSR2, write)
    uvloop.new_event_loop = _Loop  # type: ignore[assignment]
    sys.argv = [MANAGE, *arguments]
    runpy.run_path(MANAGE, run_name="__main__")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2:])
