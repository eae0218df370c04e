"""Resource limits of one container."""

from dataclasses import dataclass

MEGABYTE = 1024 * 1024
MEMORY = {"1g": 1024 * MEGABYTE, "4g": 4096 * MEGABYTE, "16g": 16384 * MEGABYTE, "64g": 65536 * MEGABYTE}
"""Memory sizes of the API's `memory_limit`, in bytes."""
SMALLEST = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a container.

    `memory`, `data` (`/mnt/data`), `scratch` (`/tmp`), `shared` (`/dev/shm`), `skills` (`/mnt/skills`) and `output`
    (each of stdout and stderr) are in bytes. `processes` is the number of processes and threads, `files` the number of
    inodes of each file system, and `locks` the number of locked ranges of files. `seconds` is the time limit of one
    call in wall-clock time.
    """

    memory: int = MEMORY[SMALLEST]
    data: int = 512 * MEGABYTE
    scratch: int = 128 * MEGABYTE
    shared: int = 64 * MEGABYTE
    skills: int = 256 * MEGABYTE
    output: int = 256 * 1024
    processes: int = 64
    open_files: int = 256
    # Empty files take kernel memory without counting against the bytes of a tmpfs.
    files: int = 20_000
    # File locks take kernel memory, too, and the kernel no longer enforces its own limit for them.
    locks: int = 20_000
    seconds: int = 60
