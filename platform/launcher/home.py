"""Directories with the data and programs of the embedded servers.

Usually these are the state directory and the virtual environment. If the launcher runs as root, the servers run under
an unprivileged account, which may be unable to enter a checkout below /root. Data and a copy of the programs are then
stored below /var/lib, where no permissions have to be widened and no cleanup of temporary files removes them.
"""

import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.accounts import SystemAccount, may_enter, may_execute, server_account

SHARED = Path("/var/lib/responses-platform")


@dataclass(frozen=True, kw_only=True)
class ServerHome:
    """Data directory of the servers, which ``account`` (None: current user) can enter; programs go to ``shared``."""

    directory: Path
    account: SystemAccount | None
    shared: Path = SHARED

    def make(self, name: str) -> Path:
        """Create a subdirectory that only the servers' account can access."""
        path = self.directory / name
        path.mkdir(mode=0o700, exist_ok=True)
        self.own(path)
        return path

    def own(self, path: Path) -> None:
        if self.account:
            os.chown(path, self.account.uid, self.account.gid)

    def reachable(self, *, program: Path, packages: tuple[Path, ...], version: str) -> Path:
        """Return the program, or a copy of it if the account cannot execute the original.

        ``packages`` are the directories to copy. Copies are kept per version and shared by all checkouts.
        """
        if may_execute(file=program, account=self.account):
            return program
        # The packages stay siblings: the program finds its libraries by relative paths.
        target = self.shared / f"{packages[0].name}-{version}"
        if not target.is_dir():
            _copy_packages(packages=packages, target=target)
        return target / program.relative_to(packages[0].parent)


def server_home(*, state_dir: Path, shared: Path = SHARED) -> ServerHome:
    """Return the home for an existing state directory."""
    account = server_account(data=state_dir / "postgres")
    if account is None:
        return ServerHome(directory=state_dir, account=None, shared=shared)
    state_dir.chmod(0o711)
    if may_enter(directory=state_dir, account=account):
        return ServerHome(directory=state_dir, account=account, shared=shared)
    directory = _shared_home(state_dir=state_dir, shared=shared)
    return ServerHome(directory=directory, account=server_account(data=directory / "postgres"), shared=shared)


def _shared_home(*, state_dir: Path, shared: Path) -> Path:
    # The name of the home is stored in the state directory: deleting that directory means a fresh start, and moving it
    # keeps the data.
    name_file = state_dir / "server-home"
    if not name_file.exists():
        name_file.write_text(uuid.uuid4().hex)
    home = shared / name_file.read_text().strip()
    home.mkdir(parents=True, exist_ok=True)
    for directory, mode in ((shared, 0o755), (home, 0o711)):  # whatever the umask
        directory.chmod(mode)
    (home / "belongs-to").write_text(str(state_dir))
    return home


def abandoned_homes(*, state_dir: Path, shared: Path = SHARED) -> list[Path]:
    """Return the homes of earlier state directories with the same path that have been deleted or moved."""
    name_file = state_dir / "server-home"
    ours = name_file.read_text().strip() if name_file.exists() else ""
    found = []
    for marker in shared.glob("*/belongs-to"):
        with suppress(OSError):
            if marker.read_text() == str(state_dir) and marker.parent.name != ours:
                found.append(marker.parent)
    return found


def _copy_packages(*, packages: tuple[Path, ...], target: Path) -> None:
    # Copied next to the target and renamed at the end, so that an interrupted copy is never used.
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for package in packages:
        shutil.copytree(package, partial / package.name, symlinks=True)
    for path in (partial, *partial.rglob("*")):
        if not path.is_symlink():  # whatever umask the checkout was made with
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    try:
        partial.rename(target)
    except OSError:  # another start was faster
        shutil.rmtree(partial)
