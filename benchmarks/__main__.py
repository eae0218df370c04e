"""The command line: `python -m benchmarks [background|chaos|admin|requests|…] …`; see benchmarks/README.md."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.installation import development

development.require_packages()

from benchmarks import (  # noqa: E402 - they import the packages that were looked for
    background,
    batches,
    conversations,
    deployment_docs,
    duplicates,
    executed_lines,
    fairness,
    first_request,
    first_start,
    full_size,
    gcra,
    idle_connections,
    large_requests,
    limit_races,
    limits,
    long_histories,
    loop_work,
    matrix,
    mixed,
    mutations,
    pages,
    regression,
    request_phases,
    rolling_restart,
    rolling_upgrade,
    sizing,
    slow_streams,
    tables,
    vectors,
    visited_files,
)
from benchmarks.books import command as books  # noqa: E402
from benchmarks.chaos import evaluation as chaos  # noqa: E402
from benchmarks.compare import command as compare  # noqa: E402
from benchmarks.console import command as console  # noqa: E402
from benchmarks.effects import command as effects  # noqa: E402
from benchmarks.failover import command as failover  # noqa: E402
from benchmarks.failover import outages  # noqa: E402
from benchmarks.routing import command as routing  # noqa: E402
from benchmarks.waiting import command as waiting  # noqa: E402
from launcher.errors import LaunchError  # noqa: E402

COMMANDS: Mapping[str, Callable[..., int]] = {
    "background": background.main,
    "batches": batches.main,
    "books": books.main,
    "compare": compare.main,
    "chaos": chaos.main,
    "admin": console.main,
    "conversations": conversations.main,
    "coverage": executed_lines.main,
    "deployment-docs": deployment_docs.main,
    "duplicates": duplicates.main,
    "effects": effects.main,
    "failover": failover.main,
    "fairness": fairness.main,
    "gcra": gcra.main,
    "idle-connections": idle_connections.main,
    "large": large_requests.main,
    "limit-races": limit_races.main,
    "limits": limits.main,
    "long-histories": long_histories.main,
    "loop-work": loop_work.main,
    "pages": pages.main,
    "vectors": vectors.main,
    "first-start": first_start.main,
    "first-request": first_request.main,
    "mixed": mixed.main,
    "mutations": mutations.main,
    "regression": regression.main,
    "request-phases": request_phases.main,
    "rolling-restart": rolling_restart.main,
    "rolling-upgrade": rolling_upgrade.main,
    "routing-simulation": routing.main,
    "sizing": sizing.main,
    "slow-streams": slow_streams.main,
    "tables": tables.main,
    "target-outages": outages.main,
    "visited-files": visited_files.main,
    "waiting-runs": waiting.main,
    **full_size.COMMANDS,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    command = COMMANDS.get(name)
    try:
        directory = Path(__file__).parent / "build" / f"run-{os.getpid()}"
        status = command(arguments, directory=directory) if command else matrix.main(sys.argv[1:], directory=directory)
        if "--publish" in arguments:
            tables.update()
        sys.exit(status)
    except LaunchError as failed:
        sys.exit(str(failed))
