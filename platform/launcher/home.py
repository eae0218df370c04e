"""Directories with the data and programs of the embedded servers.

Usually these are the state directory and the virtual environment. If the launcher runs as root, the servers run under
an unprivileged account, which may be unable to enter a checkout below /root. Data and a copy of the programs are then
stored below /var/lib, where no permissions have to be widened and no cleanup of temporary files removes them.
"""

import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from launcher.errors import LaunchError

UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, kw_only=True)
class SystemAccount:
    """A system account to start a process as."""

    uid: int
    gid: int


def server_account(*, data: Path) -> SystemAccount | None:
    """Return the account to run the embedded servers as, or None for the current user.

    Raises LaunchError if the current user is root and the system has no unprivileged account.
    """
    if os.geteuid() != 0:
        return None
    # The owner of existing data stays the owner: PostgreSQL refuses data of another account, and the account `postgres`
    # may have been created after the data.
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return SystemAccount(uid=owner.st_uid, gid=owner.st_gid)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemAccount(uid=entry.pw_uid, gid=entry.pw_gid)
    raise LaunchError(
        "PostgreSQL does not run as root, and this system has neither a `postgres` nor a `nobody` account."
    )


def may_enter(path: Path, *, account: SystemAccount | None) -> bool:
    """Return whether the account can enter a directory or execute a file."""
    # Running `test` as that account covers the mode bits of all parents, ACLs and mount options.
    return run_as(["test", "-x", str(path)], account=account, directory=Path("/")).returncode == 0


def run_as(
    argv: Sequence[str], *, account: SystemAccount | None, directory: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as the account, in a directory that it can enter, and return exit code and output."""
    return subprocess.run(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        # Ctrl-C reaches the whole process group of the terminal, and a program that it ends would look broken.
        start_new_session=True,
    )


SHARED = Path("/var/lib/responses-platform")


@dataclass(frozen=True, kw_only=True)
class ServerHome:
    """Data directory of the servers, which ``account`` can enter; None means the current user.

    Programs that ``account`` cannot execute are copied to ``shared``.
    """

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

    def version_of(self, program: Path) -> str | None:
        """Return the program's output for ``--version``, or None if it does not run."""
        # Executed to detect a wrong architecture or a missing library early.
        try:
            done = run_as([str(program), "--version"], account=self.account, directory=self.directory)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    def programs(self, pattern: str, *, distribution: str) -> Iterator[Path]:
        """Yield the programs of an installed wheel, or copies of them if the account cannot execute the originals.

        Copies are kept per version and shared by all checkouts.
        """
        spec = find_spec(distribution.replace("-", "_"))
        if spec is None or not spec.submodule_search_locations:
            return
        package = Path(spec.submodule_search_locations[0])
        # On macOS the libraries are inside the package.
        libraries = package.with_name(f"{package.name}.libs")
        try:
            release = version(distribution)
        except PackageNotFoundError:
            release = "unknown"
        for program in package.glob(pattern):
            yield self.reachable(
                program=program, packages=(package, libraries) if libraries.is_dir() else (package,), version=release
            )

    def reachable(self, *, program: Path, packages: tuple[Path, ...], version: str) -> Path:
        """Return the program, or a copy of it if the account cannot execute the original.

        ``packages`` are the directories to copy.
        """
        if may_enter(program, account=self.account):
            return program
        # The packages stay siblings: the program finds its libraries by relative paths.
        target = self.shared / f"{packages[0].name}-{version}"
        copied = target / program.relative_to(packages[0].parent)
        if target.is_dir():
            return copied
        # Copied next to the target and renamed at the end, so that an interrupted copy is never used.
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        for package in packages:
            shutil.copytree(package, partial / package.name, symlinks=True)
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():  # regardless of the checkout's umask
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        try:
            partial.rename(target)
        except OSError:  # another start has finished its copy first
            shutil.rmtree(partial)
        return copied


def server_home(*, state_dir: Path, shared: Path = SHARED) -> ServerHome:
    """Return the home for an existing state directory."""
    account = server_account(data=state_dir / "postgres")
    if account is None:
        return ServerHome(directory=state_dir, account=None, shared=shared)
    state_dir.chmod(0o711)
    if may_enter(state_dir, account=account):
        return ServerHome(directory=state_dir, account=account, shared=shared)
    # The name of the home is stored in the state directory: deleting that directory means a fresh start, and moving it
    # keeps the data.
    name_file = state_dir / "server-home"
    if not name_file.exists():
        name_file.write_text(uuid.uuid4().hex)
    home = shared / name_file.read_text().strip()
    home.mkdir(parents=True, exist_ok=True)
    for directory, mode in ((shared, 0o755), (home, 0o711)):  # regardless of the umask
        directory.chmod(mode)
    (home / "belongs-to").write_text(str(state_dir))
    return ServerHome(directory=home, account=server_account(data=home / "postgres"), shared=shared)


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
