"""The account that the embedded servers run under: PostgreSQL refuses to run as root."""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LaunchError

UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, kw_only=True)
class Account:
    """A system account to start a process as."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Say who runs the embedded servers: None means us, and an existing unprivileged account when we are root.

    Raises LaunchError when we are root and the system has none of the accounts that are made for this.
    """
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise LaunchError("PostgreSQL does not run as root and there is neither an account `postgres` nor `nobody` here.")


def may_enter(*, directory: Path, account: Account | None) -> bool:
    """Ask the kernel, as that account: this sees the mode bits of every parent, ACLs and mounts."""
    return _test("-x", path=directory, account=account)


def may_execute(*, file: Path, account: Account | None) -> bool:
    return file.is_file() and _test("-x", path=file, account=account)


def _test(flag: str, *, path: Path, account: Account | None) -> bool:
    if account is None:
        return os.access(path, os.X_OK)
    done = subprocess.run(
        ["test", flag, str(path)], cwd="/", user=account.uid, group=account.gid, extra_groups=[], check=False
    )
    return done.returncode == 0
