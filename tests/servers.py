"""Pytest plugin with the private servers of a test run, which start when the first test uses one.

`-p tests.servers` in pyproject.toml loads it before pytest-django, which reads the settings. The test run, and every
process that a test starts, finds the servers and secrets in its environment. Servers of a running platform are never
used.
"""

import atexit
import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# pytest applies its `pythonpath` only after it has loaded the plugins of the command line.
sys.path[:0] = [path for path in (str(ROOT / "platform"), str(ROOT)) if path not in sys.path]

from launcher import state  # noqa: E402 - the path above comes first
from launcher.testing import PrivateServers  # noqa: E402


def _set_environment(servers: PrivateServers) -> None:
    # Variables of the developer's shell must not affect the tests.
    for name in ("UPSTREAM_BASE_URL", "UPSTREAM_API_KEY", "SEARXNG_URL", "EGRESS_ALLOW", "ALLOWED_HOSTS", "PORT"):
        os.environ.pop(name, None)
    made = state.generate_secrets()
    os.environ.update({name: made[name] for name in state.APPLICATION_SECRETS})
    os.environ.update(
        DATABASE_URL=servers.app_url,
        DATABASE_OWNER_URL=servers.owner_url,
        REDIS_URL=servers.redis_url,
        STATE_DIR=str(servers.state_dir),
        # Started by the fixture `sandbox`. Outside of the checkout, because socket paths have a length limit.
        SANDBOX_URL=f"{tempfile.gettempdir()}/sandbox-{os.getpid()}",
        SANDBOX_TOKEN=made["SANDBOX_TOKEN"],
        DEBUG="0",
        # Test runs end their processes often, and there is no load balancer.
        DRAIN_DELAY_SECONDS="0",
        DRAIN_SECONDS="0",
        WORKER_DRAIN_SECONDS="3",
        # The warm-up takes a second of CPU for each process that a test starts.
        WARM_UP="0",
        # Enough for two retries.
        UPSTREAM_RETRY_SECONDS="2",
        # The number of deltas must not depend on the load of the machine.
        JOIN_LATE_TEXTS="false",
        UPSTREAM_BACKGROUND_RETRY_SECONDS="2",
        # The worker of one test must not deliver webhooks that another test inspects.
        WEBHOOK_CONCURRENCY="0",
        WEBHOOK_TIMEOUT_SECONDS="2",
        WEBHOOK_RETRY_SECONDS="0,0,0,600",
    )


# Rewriting and compiling the tests takes each process of a run 10 s of CPU, the modules of the platform another second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
SERVERS = PrivateServers(ROOT / ".test-run")
atexit.register(SERVERS.stop)
_set_environment(SERVERS)

# Importing and collecting the tests creates millions of objects that live until the end. Scanning them again and again
# takes a tenth of a run's CPU.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Start garbage collection, except for the objects that exist now."""
    gc.collect()
    gc.freeze()
    gc.enable()
