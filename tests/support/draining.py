"""The longest time that stopping processes take with the default settings; tests run with other settings."""

import re
from pathlib import Path

_SETTINGS = (Path(__file__).resolve().parents[2] / "platform/server/settings.py").read_text()
# For the steps after the time limits: interrupted runs are released, requests aborted, connections closed.
END_SECONDS = 10


def default_of(variable: str) -> int:
    """Return the default of a setting that is a number."""
    found = re.search(rf'env\.integer\("{variable}", default=(\d+)', _SETTINGS)
    assert found, variable
    return int(found[1])


def longest_stop(process: str) -> int:
    """Return the seconds that web or a worker may need after SIGTERM."""
    limits = {"web": ("DRAIN_DELAY_SECONDS", "DRAIN_SECONDS"), "worker": ("WORKER_DRAIN_SECONDS",)}
    return sum(map(default_of, limits[process])) + END_SECONDS
