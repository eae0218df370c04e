"""Compilation of the mock upstream and the load driver, which are written in C so that they use little CPU time."""

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
BUILD = Path(__file__).parent / "build"


def program(name: str) -> Path:
    """Return the path of a compiled program, rebuilt if its source has changed.

    Raises SystemExit with a sentence when there is no compiler, and with the compiler's words when it refuses.
    """
    source, built = SOURCES / f"{name}.c", BUILD / name
    if built.exists() and built.stat().st_mtime > source.stat().st_mtime:
        return built
    BUILD.mkdir(exist_ok=True)
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(built), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("The benchmark needs a C compiler (`cc`) for its mock upstream and its load driver.") from None
    except subprocess.CalledProcessError as refused:
        raise SystemExit(refused.stderr) from None
    return built
