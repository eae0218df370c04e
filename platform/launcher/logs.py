"""Log files of child processes: tail after a failure, errors for the terminal, limit of size."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 32 * 1024 * 1024
MAX_PIECE = 256 * 1024
# Matches plain and JSON lines. PostgreSQL's ERROR (two spaces after the colon) is excluded: it reports a rejected
# statement, which is normal here because constraints decide races.
SERIOUS = re.compile(
    r"\b(CRITICAL|PANIC)\b|\bERROR\b(?!:  )|\bFATAL\b(?!:  the database system is)"
    r'|"level": ?"(error|critical)"'
)


def tail(path: Path, *, lines: int = 20) -> list[str]:
    """Return the last lines of a log, or an empty list if it does not exist."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 65536))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


class LogWatch:
    """Follows a log from its current end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0
        self._in_traceback = False

    def serious_lines(self) -> Iterator[str]:
        """Yield the new lines that an operator should see; of a traceback only the line with the error."""
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
        # An incomplete last line is left for the next call, unless it alone fills the buffer.
        whole = piece[: piece.rfind(b"\n") + 1] if len(piece) < MAX_PIECE else piece
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def rotate(self) -> None:
        """Rotate the log if it exceeds its maximum size."""
        if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
            # Copied and truncated instead of renamed, because the child keeps the file open for appending.
            shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.truncate(self._path, 0)
            self._position = 0
