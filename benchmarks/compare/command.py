"""`python -m benchmarks compare`: the platform and other servers for the Responses API under the same load.

LiteLLM, OGX and agentic-api are installed from their locks in `servers/` into environments of a cache folder. Each
server is one process (agentic-api, in Rust, uses all cores) in front of the same mock upstream. Cells are measured in
rounds, all servers in turn, so that a drift of the machine affects them equally.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks import published
from benchmarks.compare.limits import floors
from benchmarks.compare.measurements import CONCURRENCY, KINDS, Comparison, figure
from benchmarks.compare.other_servers import PACKAGES, contenders
from benchmarks.compare.report import detailed, servers
from benchmarks.report import NOISY_CORES


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the tables and limits. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("compare", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="check in two minutes that every server works")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each cell (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a measurement (default 2)")
    parser.add_argument(
        "--concurrency",
        type=lambda text: tuple(sorted({1, *map(int, text.split(","))})),
        default=CONCURRENCY,
        help="numbers of connections beside 1, such as 64,256",
    )
    options = parser.parse_args(arguments)
    with contenders(directory) as (stack, found, missing):
        comparison = Comparison(contenders=found, seconds=0.5 if options.smoke else options.seconds)
        comparison.warm_up()
        rounds = 1 if options.smoke else options.rounds
        comparison.measure(rounds=rounds, concurrency=(1, 8) if options.smoke else options.concurrency)
        with psycopg.connect(stack.admin) as database:
            query = "SELECT count(*) FROM responses_response WHERE status = 'completed'"
            stored = (database.execute(query).fetchone() or (0,))[0]
    content = {
        "conditions": published.conditions(),
        "proxy": stack.proxy_parts,
        "versions": {package.name: package.version for package in PACKAGES},
        "missing": missing,
        "rounds": rounds,
        "not_stored": abs(comparison.completed - stored),
        "results": comparison.results(),
    }
    print(detailed(content))
    _print_failures(comparison)
    judged = list(floors(content, speed=not options.smoke))
    for floor in judged:
        print(floor.text())
    _print_ratios(content)
    return published.conclude("compare", options, content=content, floors=judged)


def _print_failures(comparison: Comparison) -> None:
    for (kind, connections, server), cell in comparison.rounds.items():
        if errors := [each.first_error for each in cell if each.failed]:
            print(f"{server}, {kind} at {connections}: {errors[0][:200]}")
    noise = median(each.foreign_cores for cell in comparison.rounds.values() for each in cell)
    if noise > NOISY_CORES:
        print(f"Other processes used {noise:.1f} cores meanwhile: repeat on an idle machine.")


def _print_ratios(content: Mapping[str, Any]) -> None:
    for kind in KINDS:
        ours = figure(content, kind, 64, "platform", "per_second")
        for server in servers(content):
            theirs = figure(content, kind, 64, server, "per_second")
            if ours and theirs and server != "platform":
                print(f"{kind} at 64: {ours / theirs:.2f} times {server}")
