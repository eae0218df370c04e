"""Wrong clocks of processes."""

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("shifted_clock.c")


class ShiftedClock:
    """The clock of the processes that start with `variables`: it is wrong by some seconds, which can change."""

    def __init__(self, directory: Path, *, seconds: int = 0) -> None:
        library, self._shift = directory / "shifted_clock.so", directory / "shift"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
        self._shift.write_bytes(struct.pack("q", seconds))
        self.variables = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._shift)}

    @property
    def seconds(self) -> int:
        """The seconds by which the clock is ahead."""
        (seconds,) = struct.unpack("q", self._shift.read_bytes())
        return int(seconds)

    def shift(self, seconds: int) -> None:
        """Set the clock by some seconds."""
        # In place: the processes have mapped the file.
        with self._shift.open("r+b") as file:
            file.write(struct.pack("q", seconds))
