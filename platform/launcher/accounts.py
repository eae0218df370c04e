"""The account that the embedded servers run under: PostgreSQL refuses to run as root."""

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
    """Say who runs the embedded servers: None means us, and an existing unprivileged account when we are root.

    Whoever owns ``data`` already stays its owner: PostgreSQL refuses data of another account, and an account `postgres`
    may have come to the system since. Raises LaunchError when the system has no account that is made for this.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return SystemAccount(name=str(owner.st_uid), uid=owner.st_uid, gid=owner.st_gid)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemAccount(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise LaunchError("PostgreSQL does not run as root and there is neither an account `postgres` nor `nobody` here.")


def may_enter(*, directory: Path, account: SystemAccount | None) -> bool:
    """Ask the kernel, as that account: this sees the mode bits of every parent, ACLs and mounts."""
    return _test("-x", path=directory, account=account)


def may_execute(*, file: Path, account: SystemAccount | None) -> bool:
    return file.is_file() and _test("-x", path=file, account=account)


def _test(flag: str, *, path: Path, account: SystemAccount | None) -> bool:
    return run(["test", flag, str(path)], account=account, directory=Path("/")).returncode == 0


def run(
    argv: Sequence[str], *, account: SystemAccount | None, directory: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as that account, from a directory that the account can enter, and keep its output."""
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
        # A terminal's Ctrl-C goes to our whole group; what it ended would look like a program that does not work.
        start_new_session=True,
    )
