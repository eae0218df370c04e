"""A pytest plugin: private servers and a fresh database for this run, before anything reads the settings.

`-p tests.servers` in pyproject.toml loads it ahead of pytest-django, so that the whole run, and every process that a
test starts, finds its servers and secrets in the environment. It never touches the servers of a running platform.
"""

import atexit
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# pytest applies its `pythonpath` only after it has loaded the plugins of the command line.
sys.path[:0] = [path for path in (str(ROOT / "platform"), str(ROOT)) if path not in sys.path]

from launcher import credentials  # noqa: E402 - the path above comes first
from launcher.testing import PrivateServers, start_servers  # noqa: E402


def _enter(servers: PrivateServers) -> None:
    """What a real upstream or a developer's shell has set must not reach the tests."""
    for name in ("UPSTREAM_BASE_URL", "UPSTREAM_API_KEY", "SEARXNG_URL", "EGRESS_ALLOW", "ALLOWED_HOSTS", "PORT"):
        os.environ.pop(name, None)
    made = credentials.generate()
    os.environ.update({name: made[name] for name in credentials.APPLICATION})
    os.environ.update(
        DATABASE_URL=servers.app_url,
        DATABASE_OWNER_URL=servers.owner_url,
        REDIS_URL=servers.redis_url,
        STATE_DIR=str(servers.state_dir),
        # Nobody listens there before a test asks for the fixture `sandbox`. The path of a socket has to be short.
        SANDBOX_URL=f"{tempfile.gettempdir()}/sandbox-{os.getpid()}",
        SANDBOX_TOKEN=made["SANDBOX_TOKEN"],
        DEBUG="0",
        # A worker of one test must not deliver what another one looks at.
        WEBHOOK_CONCURRENCY="0",
        WEBHOOK_TIMEOUT_SECONDS="2",
        WEBHOOK_RETRY_SECONDS="0,0,0,600",
    )


SERVERS = start_servers(ROOT / ".test-run")
atexit.register(SERVERS.stop)
_enter(SERVERS)
