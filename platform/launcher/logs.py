"""The children's log files: their tail for a failure, their errors for the terminal, their size kept bounded."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 32 * 1024 * 1024
MAX_PIECE = 256 * 1024
# Plain and JSON lines. PostgreSQL's ERROR is a refused statement and everyday life: constraints decide races.
SERIOUS = re.compile(
    r"\b(CRITICAL|PANIC)\b|\bERROR\b(?!:  )|\bFATAL\b(?!:  the database system is)"
    r'|"level": ?"(error|critical)"'
)


def tail(path: Path, *, lines: int = 20) -> list[str]:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 65536))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


class LogWatch:
    """Follows one log from its present end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0
        self._in_traceback = False

    def serious_lines(self) -> Iterator[str]:
        """Lines since the last call that a person should see; of a traceback the one that names the error."""
        for line in self._new_lines():
            if line.startswith("Traceback "):
                self._in_traceback = True
            elif self._in_traceback and line[:1].strip():
                self._in_traceback = False
                yield line.rstrip()
            elif SERIOUS.search(line):
                yield line.rstrip()

    def _new_lines(self) -> list[str]:
        try:
            with self._path.open("rb") as log:
                log.seek(self._position)
                piece = log.read(MAX_PIECE)
        except FileNotFoundError:
            return []
        whole = piece[: piece.rfind(b"\n") + 1] if len(piece) < MAX_PIECE else piece
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def keep_small(self) -> None:
        """Move an overgrown log aside. The child keeps the file open for appending, so it is copied and emptied."""
        if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
            shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.truncate(self._path, 0)
            self._position = 0
