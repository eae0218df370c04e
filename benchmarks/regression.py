"""`python -m benchmarks regression --against REVISION`: the speed of an older revision and of this checkout.

Each version has a web process and a PostgreSQL of its own. In every round, the old one, the new one and the old one
again get the same load one after the other. So each figure of the new version has a counterpart of the old one from the
same minute, and the difference of the old version to itself shows how exact the comparison is.
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.load import Measurement, Pace, Target, measure, program
from benchmarks.stack import is_up, running_servers, tell
from benchmarks.versions import Version, checked_out
from launcher.address import any_free_port

_MODEL = "mock"  # 64 tokens in one write
_OLD, _NEW, _AGAIN = "old", "new", "old again"


@dataclass(frozen=True, kw_only=True)
class Load:
    """A kind of request, and the figure that is compared."""

    name: str
    stream: bool
    connections: int
    unit: str

    def measure(self, target: Target, *, seconds: float) -> tuple[float, float]:
        """Return the figure, and the CPU time of the platform in milliseconds per request."""
        body = {"model": _MODEL, "input": "Hi", "stream": self.stream}
        pace = Pace(connections=self.connections, seconds=seconds, warm_up=0.5)
        measured = measure(target, body=body, pace=pace)
        if measured.failed:
            raise SystemExit(f"{measured.failed} requests to {target.name} failed: {measured.first_error}")
        return self._figure(measured), measured.cpu_ms_per_request

    def _figure(self, measured: Measurement) -> float:
        if self.unit == "/s":
            return measured.per_second
        return measured.first_event_ms.p50 if measured.first_event_ms is not None else 0.0


LOADS = (
    Load(name="JSON", stream=False, connections=16, unit="/s"),
    Load(name="stream", stream=True, connections=16, unit="/s"),
    Load(name="first event", stream=True, connections=1, unit="ms"),
)


def compared(revision: str, *, rounds: int, seconds: float, directory: Path) -> bool:
    """Measure and print both versions. Return whether each figure is within the spread of the old version."""
    directory.mkdir(parents=True)
    with ExitStack() as undo:
        old = undo.enter_context(checked_out(revision, directory / "checkout"))
        targets: dict[str, Target] = {}
        upstream = ""
        for version in (old, Version("new")):
            servers = undo.enter_context(running_servers(directory / version.name, programs=version))
            if not upstream:
                port = any_free_port()
                upstream = f"http://127.0.0.1:{port}"
                ready = partial(is_up, f"{upstream}/health")
                servers.start("mock", str(program("mock")), "--port", str(port), is_ready=ready)
            targets[version.name] = version.start_web(servers, servers.route(upstream))
        targets[_AGAIN] = targets[_OLD]
        return _compare(targets, rounds=rounds, seconds=seconds)


def _compare(targets: Mapping[str, Target], *, rounds: int, seconds: float) -> bool:
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    # The first round warms the caches up and is not counted.
    for number in range(rounds + 1):
        # The order rotates, so that no version always follows the same one.
        names = [_OLD, _NEW, _AGAIN]
        for name in names[number % 3 :] + names[: number % 3]:
            for load in LOADS:
                figure = load.measure(targets[name], seconds=seconds)
                if number:
                    figures.setdefault((load.name, name), []).append(figure)
        tell(f"round {number} of {rounds}")
    within = [_is_within(load, figures, what) for load in LOADS for what in range(2)]
    return all(within)


def _is_within(load: Load, figures: Mapping[tuple[str, str], Sequence[tuple[float, float]]], what: int) -> bool:
    """Print a figure (0) or the CPU time (1) of a load, and return whether the new version is within the spread."""
    of = {name: [values[what] for values in figures[load.name, name]] for name in (_OLD, _NEW, _AGAIN)}
    own = [again / old - 1 for again, old in zip(of[_AGAIN], of[_OLD], strict=True)]
    change = median(new / old - 1 for new, old in zip(of[_NEW], of[_OLD], strict=True))
    is_within = min(own) <= change <= max(own)
    medians = ", ".join(f"{name} {median(values):.2f}" for name, values in of.items())
    print(
        f"{load.name}, {'CPU ms' if what else load.unit}: {medians}; new against old {change:+.1%}, "
        f"old against itself {median(own):+.1%}, {min(own):+.1%} to {max(own):+.1%}{'' if is_within else ' EXCEEDED'}",
        flush=True,
    )
    return is_within


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Compare the versions and return 1 if a difference exceeds the one between two measurements of the old version."""
    parser = ArgumentParser(prog="python -m benchmarks regression", description=__doc__)
    parser.add_argument("--against", required=True, help="commit or tag of the older version")
    parser.add_argument("--rounds", type=int, default=12, help="(default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in a round (default %(default)s)")
    options = parser.parse_args(arguments)
    is_within = compared(options.against, rounds=options.rounds, seconds=options.seconds, directory=directory)
    return int(not is_within)
