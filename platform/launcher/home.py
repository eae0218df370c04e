"""Where the embedded servers keep their data and find their programs.

Usually that is the state directory and the virtual environment. As root we start the servers under an unprivileged
account, and that account may be unable to enter a checkout below /root: then data and a copy of the programs live under
/var/lib, where nothing has to be opened up and no cleaner of temporary files removes what it thinks is old.
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
    """A directory that ``account`` (None: our own) can enter, and where programs are copied to if it must be so."""

    directory: Path
    account: SystemAccount | None
    shared: Path = SHARED

    def make(self, name: str) -> Path:
        """Create a private directory of the servers' account."""
        path = self.directory / name
        path.mkdir(mode=0o700, exist_ok=True)
        self.own(path)
        return path

    def own(self, path: Path) -> None:
        if self.account:
            os.chown(path, self.account.uid, self.account.gid)

    def reachable(self, *, program: Path, packages: tuple[Path, ...], version: str) -> Path:
        """The program itself, or its copy when the account cannot execute the original.

        ``packages`` are sibling directories that must stay siblings, because the program finds its libraries by
        relative paths. A copy is kept per version and shared by all checkouts.
        """
        if may_execute(file=program, account=self.account):
            return program
        target = self.shared / f"{packages[0].name}-{version}"
        if not target.is_dir():
            _copy_packages(packages=packages, target=target)
        return target / program.relative_to(packages[0].parent)


def server_home(*, state_dir: Path, shared: Path = SHARED) -> ServerHome:
    """Find the home for a state directory, which exists already."""
    account = server_account(data=state_dir / "postgres")
    if account is None:
        return ServerHome(directory=state_dir, account=None, shared=shared)
    state_dir.chmod(0o711)
    if may_enter(directory=state_dir, account=account):
        return ServerHome(directory=state_dir, account=account, shared=shared)
    directory = _shared_home(state_dir=state_dir, shared=shared)
    return ServerHome(directory=directory, account=server_account(data=directory / "postgres"), shared=shared)


def _shared_home(*, state_dir: Path, shared: Path) -> Path:
    """The name is kept in the state directory: who deletes that starts afresh, who moves it takes the data along."""
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
    """Data of state directories that stood at the same place and were deleted or moved since."""
    name_file = state_dir / "server-home"
    ours = name_file.read_text().strip() if name_file.exists() else ""
    found = []
    for marker in shared.glob("*/belongs-to"):
        with suppress(OSError):
            if marker.read_text() == str(state_dir) and marker.parent.name != ours:
                found.append(marker.parent)
    return found


def _copy_packages(*, packages: tuple[Path, ...], target: Path) -> None:
    """Copy next to the target, then rename: a copy that was interrupted is never taken for a whole one."""
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
