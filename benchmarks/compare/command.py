"""`python -m benchmarks compare`: the platform and other servers for the Responses API under the same load.

LiteLLM, OGX and agentic-api are installed from their locks in `servers/` into environments of a cache folder. Each
server is one process (agentic-api, in Rust, uses all cores) in front of the same mock upstream; the platform is also
measured as it starts by default, with a process per core. Cells are measured in rounds, all servers in turn, so that a
drift of the machine affects them equally. If this interpreter was built without optimisation and an optimised one is
found, everything runs on that one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks import published
from benchmarks.compare import environments, interpreters, limits
from benchmarks.compare.measurements import (
    CONCURRENCY,
    KINDS,
    LADDER,
    PER_CORE,
    PLATFORM,
    SMOKE,
    Comparison,
    Contender,
    Durations,
    figure,
)
from benchmarks.compare.other_servers import PACKAGES, started
from benchmarks.compare.report import detailed, servers
from benchmarks.matrix import BURST
from benchmarks.report import NOISY_CORES
from benchmarks.stack import ROOT, Stack, running_stack, tell
from launcher.bootstrap import DEVELOPMENT
from launcher.errors import LaunchError


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the tables and limits. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("compare", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="check in two and a half minutes that every server works")
    parser.add_argument(
        "--interpreter", type=Path, help="Python for the platform (default: an optimised one, if found)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each cell (default 3)")
    parser.add_argument("--seconds", type=float, default=Durations.window, help="duration of a measurement (default 2)")
    parser.add_argument(
        "--concurrency",
        type=lambda text: tuple(sorted({1, *map(int, text.split(","))})),
        default=CONCURRENCY,
        help="numbers of connections beside 1, such as 64,256",
    )
    options = parser.parse_args(arguments)
    use_interpreter(options.interpreter, arguments)
    with contenders(directory) as (stack, found, missing):
        durations = SMOKE if options.smoke else Durations(window=options.seconds)
        comparison = Comparison(contenders=found, durations=durations)
        comparison.warm_up()
        rounds = 1 if options.smoke else options.rounds
        comparison.measure(rounds=rounds, concurrency=(1, 8) if options.smoke else options.concurrency)
        comparison.climb(LADDER[:2] if options.smoke else LADDER)
        # Last, because each response adds 200 KB to the databases.
        comparison.measure_large_prompts(rounds=rounds)
        with psycopg.connect(stack.admin) as database:
            query = "SELECT count(*) FROM responses_response WHERE status = 'completed'"
            stored = (database.execute(query).fetchone() or (0,))[0]
    content = {
        "conditions": published.conditions(),
        "proxy": stack.proxy_parts,
        "versions": {package.name: package.version for package in PACKAGES},
        "interpreters": {
            package.name: package.python().build.describe()
            for package in PACKAGES
            if package.is_python and any(contender.target.name in package.models for contender in found)
        },
        "missing": missing,
        "rounds": rounds,
        "not_stored": abs(comparison.completed - stored),
        "results": comparison.results(),
        "ladder": comparison.ladder,
    }
    print(detailed(content))
    _print_failures(comparison)
    judged = list(limits.floors(content, speed=not options.smoke))
    for floor in judged:
        print(floor.text())
    _print_ratios(content)
    return published.conclude("compare", options, content=content, floors=judged)


def use_interpreter(wanted: Path | None, arguments: Sequence[str]) -> None:
    """Restart this command on the wanted interpreter, or on an optimised one if this one is slow.

    Raises LaunchError if the wanted one is no Python that the platform supports.
    """
    current = interpreters.own()
    if wanted:
        chosen = interpreters.at(wanted)
    elif current.build.is_slow:
        chosen = interpreters.preferred(interpreters.found(), current=current)
    else:
        return
    if not chosen:
        message = f"{wanted} is no Python 3.11 or newer that runs here."
        raise LaunchError(message)
    if chosen.path == current.path:
        return
    programs = environments.installed("platform", lock=ROOT / DEVELOPMENT, python=chosen)
    tell(f"running on {chosen.build.describe()} ({chosen.path}) instead of {current.build.describe()}")
    python = str(programs / "python")
    os.chdir(ROOT)
    os.execv(python, [python, "-m", "benchmarks", "compare", *arguments])


@contextmanager
def contenders(directory: Path) -> Iterator[tuple[Stack, list[Contender], list[str]]]:
    """Run all servers; yield the stack of the platform, the contenders, and the reasons why others are missing."""
    with running_stack(directory=directory) as (servers, stack):
        default = servers.start_web(name="web-per-core", processes=None)
        default = replace(default, name=PER_CORE, headers=stack.platform.headers)
        found = [Contender(target=target, model=BURST) for target in (stack.proxy, stack.platform, default)]
        missing = []
        for package in PACKAGES:
            try:
                found += started(package, servers, upstream=stack.mock.url)
            except LaunchError as failed:
                tell(str(failed))
                missing.append(str(failed))
        yield stack, found, missing


def _print_failures(comparison: Comparison) -> None:
    for (kind, connections, server), cell in comparison.rounds.items():
        if errors := [measured.first_error for measured in cell if measured.failed]:
            print(f"{server}, {kind} at {connections}: {errors[0][:200]}")
    noise = median(measured.foreign_cores for cell in comparison.rounds.values() for measured in cell)
    if noise > NOISY_CORES:
        print(f"Other processes used {noise:.1f} cores meanwhile: repeat on an idle machine.")


def _print_ratios(content: Mapping[str, Any]) -> None:
    for kind in KINDS:
        ours = figure(content, kind, 64, PLATFORM, "per_second")
        for server in servers(content):
            theirs = figure(content, kind, 64, server, "per_second")
            if ours and theirs and server != PLATFORM:
                print(f"{kind} at 64: {ours / theirs:.2f} times {server}")
