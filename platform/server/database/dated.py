"""Directories of regular backups, which are named by the time, such as `2026-11-30T023000Z`."""

import re
import shutil
from pathlib import Path

from core.clock import now
from server.database.backup import MANIFEST

_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")


def new_directory(folder: Path) -> Path:
    """Return the directory for a backup that begins now. It is not created."""
    return folder / f"{now():%Y-%m-%dT%H%M%SZ}"


def delete_old(folder: Path, *, keep: int) -> list[Path]:
    """Delete the backups before the latest complete ones, and return their directories.

    Incomplete backups do not count, so that failures never displace the last complete backup. Those that are older than
    the kept ones are deleted too. Other directories in the folder are left alone.
    """
    backups = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())
    complete = [path for path in backups if (path / MANIFEST).is_file()]
    old = [path for path in backups if path < complete[-keep]] if len(complete) >= keep else []
    for path in old:
        # Without its manifest, a directory that is only partly deleted is not taken for a backup.
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    return old
