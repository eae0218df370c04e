"""Tests that otherwise run a seeded sample of their cases, with all cases: `python -m benchmarks requests|races|…`."""

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

CHECKS: Mapping[str, Sequence[str]] = {
    "bombs": ("tests/faults/test_bombs.py", "tests/unit/test_extraction.py"),
    "requests": ("tests/contract/test_schemathesis.py",),
    "clients": ("tests/contract/clients",),
    "nightly": ("tests", "-m", "nightly"),
    "valid-requests": ("tests/contract/test_valid_requests.py",),
    "crawl": (
        "tests/admin/test_admin_crawl.py",
        "tests/browser/test_axe.py",
        "tests/browser/test_every_page.py",
        "tests/browser/test_layout.py",
        "tests/api/server/test_malformed_ids.py",
    ),
    "races": ("tests/faults/test_cancel_races.py", "tests/faults/test_file_removal_races.py"),
    "effect-kills": ("tests/faults/test_effect_kills.py",),
    "waiting-day": ("tests/faults/test_waiting_day.py",),
    "target-faults": ("tests/faults/test_target_faults.py",),
    "routing": ("tests/unit/test_routing_simulation.py",),
    "seeding": ("tests/admin/test_seed_demo.py",),
    "upstreams": ("tests/unit/test_random_upstreams.py",),
    "combinations": ("tests", "-m", "combination"),
    "daphne": ("tests/api", "tests/contract", "tests/faults", "-k", "daphne"),
    "histories": (
        "tests/api/conversations/test_conversations_history.py",
        "tests/storage/test_conversations_model.py",
        "tests/storage/test_rollups.py::test_query_results_equal_sums_over_the_rows",
    ),
}
ROOT = Path(__file__).parents[1]


def main(name: str, arguments: Sequence[str], *, directory: Path) -> int:
    """Run all cases of a check and return pytest's exit code. The tests start servers of their own."""
    parser = ArgumentParser(prog=f"python -m benchmarks {name}")
    parser.add_argument("--seed", type=int, default=1, help="seed of the generated cases (default %(default)s)")
    options = parser.parse_args(arguments)
    # The time limits of the tests are for the sample, so a longer one replaces them.
    command = [sys.executable, "-m", "pytest", "-m", "slow", "--durations=5", "-o", "timeout=3600", *CHECKS[name]]
    environment = {**os.environ, "TEST_SIZE": "full", "TEST_SEED": str(options.seed)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


COMMANDS = {name: partial(main, name) for name in CHECKS}
