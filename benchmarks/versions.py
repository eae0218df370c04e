"""Checkouts of other versions, whose processes run on their own servers or beside the processes of this checkout."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from typing_extensions import override

from benchmarks.load import Target
from benchmarks.stack import ROOT, Programs, Server, Servers, is_up, manage
from launcher.address import any_free_port


class Version(Programs):
    """A checkout of the platform."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        self.name = name
        self._root = root

    @override
    def manage(self, environment: Mapping[str, str], *arguments: str) -> str:
        return manage(environment, *arguments, root=self._root)

    def start_web(self, servers: Servers, key: str) -> Target:
        """Start a web process."""
        port = any_free_port()
        url = f"http://127.0.0.1:{port}"
        options = ("--host", "127.0.0.1", "--port", str(port), "--processes", "1")
        web = self._start(servers, "web", *options, is_ready=partial(is_up, f"{url}/readyz"))
        headers = {"Authorization": f"Bearer {key}"}
        return Target(name=self.name, url=url, pid=web.process.pid, api="responses", headers=headers)

    def start_worker(self, servers: Servers) -> Server:
        """Start a worker and wait until it executes background responses."""
        log = servers.log(f"worker-{self.name}")
        seen = log.stat().st_size if log.exists() else 0
        works = "the worker claims background responses"
        return self._start(servers, "worker", is_ready=lambda: works in log.read_text(errors="replace")[seen:])

    def _start(self, servers: Servers, kind: str, *options: str, is_ready: Callable[[], bool]) -> Server:
        # Celery puts the current directory on the path, so it has to be the checkout.
        command = servers.command(f"{kind}-{self.name}", sys.executable, str(self._root / "manage.py"), kind, *options)
        return servers.run(replace(command, directory=self._root), is_ready=is_ready)


@contextmanager
def checked_out(revision: str, path: Path) -> Iterator[Version]:
    """Check a revision out beside this one, with the same environment, and remove it afterwards."""
    git = partial(subprocess.run, cwd=ROOT, check=True, capture_output=True)
    git(["git", "worktree", "add", "--detach", "--quiet", str(path), revision])
    try:
        (path / ".venv").symlink_to(ROOT / ".venv")
        yield Version("old", path)
    finally:
        git(["git", "worktree", "remove", "--force", str(path)])
