"""The command line: `python -m benchmarks [--smoke] [--check] [--profile] …`; see README.md in this folder."""

import json
import os
import platform as machine
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from benchmarks import background, report, statements, vectors
from benchmarks.cells import BURST, FULL, SHORT, SMOKE, Cell, Group, Scale, chosen
from benchmarks.chaos import command as chaos
from benchmarks.console import command as console
from benchmarks.load import Pace
from benchmarks.profiling import recording, summarised
from benchmarks.rounds import Results, Session
from benchmarks.rows import Count, counted
from benchmarks.stack import running
from launcher.errors import LaunchError

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PROFILE_SECONDS = 5.0


def main() -> int:
    if sys.argv[1:2] == ["background"]:
        return background.main(sys.argv[2:], directory=HERE / "build" / f"run-{os.getpid()}")
    if sys.argv[1:2] == ["chaos"]:
        return chaos.main(sys.argv[2:], directory=HERE / "build" / f"run-{os.getpid()}")
    if sys.argv[1:2] == ["admin"]:
        return console.main(sys.argv[2:], directory=HERE / "build" / f"run-{os.getpid()}")
    if sys.argv[1:2] == ["vectors"]:
        return vectors.main(sys.argv[2:], directory=HERE / "build" / f"run-{os.getpid()}")
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _end)
    scale, stamp = _scale(options), time.strftime("%Y%m%d-%H%M%S")
    RESULTS.mkdir(exist_ok=True)
    directory = HERE / "build" / f"run-{os.getpid()}"
    with running(directory=directory, server=options.server, proxy_python=options.proxy_python) as stack:
        session = Session(stack=stack, tell=_tell)
        results = session.measure_all(list(chosen(options.groups, scale)), rounds=scale.rounds)
        if options.profile:
            _profile(session, RESULTS / f"{stamp}-profile.txt")
        counts = counted(admin=stack.admin, asked=session.asked)
    judged = report.floors(results=results, counts=counts, scale=scale)
    conditions = _conditions(options, proxy_parts=stack.proxy_parts)
    _write(RESULTS / f"{stamp}.json", conditions=conditions, results=results, counts=counts, judged=judged)
    print(report.text(results=results, counts=counts, judged=judged, proxy_parts=stack.proxy_parts))
    return 1 if options.check and not all(floor.holds for floor in judged) else 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="check in seconds that everything works")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--rounds", type=int, help=f"number of measurements of each cell (default {FULL.rounds})")
    parser.add_argument("--concurrency", type=_numbers, help="of the matrix, such as 1,64")
    parser.add_argument("--seconds", type=float, help=f"duration of each measurement (default {FULL.seconds})")
    parser.add_argument("--server", choices=("daphne", "uvicorn"), default="daphne", help="the platform's ASGI server")
    parser.add_argument(
        "--groups",
        nargs="+",
        type=Group,
        choices=list(Group),
        default=list(Group),
        help="groups to measure (default all)",
    )
    parser.add_argument("--profile", action="store_true", help="profile the web process with py-spy at the end")
    parser.add_argument(
        "--proxy-python",
        default=sys.executable,
        help="interpreter of the proxy, such as one with uvloop and httptools",
    )
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _scale(options: Namespace) -> Scale:
    given = {name: getattr(options, name) for name in ("rounds", "concurrency", "seconds")}
    return replace(SMOKE if options.smoke else FULL, **{name: value for name, value in given.items() if value})


def _profile(session: Session, file: Path) -> None:
    """Profile streams with py-spy, and list the SQL of a stream and of the last turn of a chain."""
    # py-spy slows the process down, so these figures are not in the table. SQL is counted at concurrency 1, where no
    # two requests share a batch.
    platform, raw = session.stack.platform, file.with_suffix(".raw")
    together = Pace(connections=report.JUDGED_CONCURRENCY, seconds=PROFILE_SECONDS, warm_up=1.0)
    with recording(pid=platform.pid, seconds=PROFILE_SECONDS, file=raw):
        session.measure(Cell(name="profile", stream=True, model=BURST, pace=together), platform)
    alone = Pace(connections=1, seconds=1.0)
    cells = (
        Cell(name="a stream", stream=True, model=BURST, pace=alone),
        Cell(name="turn 10 of a chain", stream=False, model=SHORT, pace=alone, history=9),
    )
    sql = [line for cell in cells for line in _statements(session, cell)]
    file.write_text("\n".join((summarised(raw.read_text()).text(), *sql, "")))
    print(file.read_text())


def _statements(session: Session, cell: Cell) -> list[str]:
    session.measure(cell, session.stack.platform)
    statements.forget(admin=session.stack.admin)
    measured = session.measure(cell, session.stack.platform)
    return [f"-- SQL of {cell.name}", *statements.listed(admin=session.stack.admin, requests=measured.started)]


def _conditions(options: Namespace, *, proxy_parts: str) -> dict[str, Any]:
    return {
        "options": vars(options),
        "proxy": proxy_parts,
        "cores": os.cpu_count(),
        "system": machine.platform(),
        "python": machine.python_version(),
    }


def _write(
    file: Path,
    *,
    conditions: dict[str, Any],
    results: Results,
    counts: Sequence[Count],
    judged: Sequence[report.Floor],
) -> None:
    content = {
        "conditions": conditions,
        "results": [result.model_dump() for result in results.values()],
        "rows": [asdict(count) for count in counts],
        "floors": [{**asdict(floor), "holds": floor.holds} for floor in judged],
    }
    file.write_text(json.dumps(content, indent=1))
    _tell(f"written to {file}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception unwinds the context managers, which stop all processes.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LaunchError as failed:
        sys.exit(str(failed))
