"""The system account of the embedded servers. PostgreSQL refuses to run as root."""

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LaunchError

UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, kw_only=True)
class SystemAccount:
    """A system account to start a process as."""

    name: str
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
        return SystemAccount(name=str(owner.st_uid), uid=owner.st_uid, gid=owner.st_gid)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemAccount(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise LaunchError(
        "PostgreSQL does not run as root, and this system has neither a `postgres` nor a `nobody` account."
    )


def may_enter(*, directory: Path, account: SystemAccount | None) -> bool:
    """Return whether the account can enter a directory."""
    # Running `test` as that account covers the mode bits of all parents, ACLs and mount options.
    return _test("-x", path=directory, account=account)


def may_execute(*, file: Path, account: SystemAccount | None) -> bool:
    return file.is_file() and _test("-x", path=file, account=account)


def _test(flag: str, *, path: Path, account: SystemAccount | None) -> bool:
    return run(["test", flag, str(path)], account=account, directory=Path("/")).returncode == 0


def run(
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
        # Ctrl-C goes to the whole process group of the terminal. A program that it ends would look like a broken one.
        start_new_session=True,
    )
