"""How much one container may take."""

from dataclasses import asdict, dataclass
from typing import Any

MEGABYTE = 1024 * 1024
MEMORY = {"1g": 1024 * MEGABYTE, "4g": 4096 * MEGABYTE, "16g": 16384 * MEGABYTE, "64g": 65536 * MEGABYTE}
"""The sizes that the wire knows, in bytes."""
SMALLEST = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a container gets: bytes of memory, of files in `/mnt/data` and `/tmp`, and of each output; processes and
    threads together; files; seconds for a call, on the clock."""

    memory: int = MEMORY[SMALLEST]
    data: int = 512 * MEGABYTE
    scratch: int = 128 * MEGABYTE
    shared: int = 64 * MEGABYTE
    output: int = 256 * 1024
    processes: int = 64
    open_files: int = 256
    files: int = 20_000
    seconds: int = 60

    def told(self) -> dict[str, Any]:
        """The limits as JSON, for the inside."""
        return asdict(self)
