"""Reads bundles in the process pool, because even a small archive can take much time and memory."""

import json
from collections.abc import Iterable
from dataclasses import replace

from core.compute.pool import Computation, ComputationFailed, TooCostly, compute
from core.errors import InvalidValue
from skills import bundle as bundles
from skills.bundle import MAX_TOTAL_BYTES, Bundle, BundleFile

_MIB = 1024 * 1024
_ARCHIVE = Computation(
    function=f"{bundles.__name__}:compute_archive",
    imports=("yaml", "zipfile"),
    # Compressing 64 MiB takes 4 s of CPU time.
    cpu_seconds=20,
    seconds=60.0,
    # For two copies of the input, the files and the new archive, in addition to 200 MiB for Python and its libraries.
    memory=768 * _MIB,
    # An archive of files that cannot be compressed is a little larger than the files.
    result=MAX_TOTAL_BYTES + 8 * _MIB,
)
_FILES = replace(_ARCHIVE, function=f"{bundles.__name__}:compute_files")


async def read_archive(content: bytes, *, param: str, waits: bool = False) -> Bundle:
    """Read a bundle from a zip archive. Raises InvalidValue, and Overloaded if the pool is busy and not `waits`."""
    return await _read(_ARCHIVE, content, param, waits=waits)


async def read_files(files: Iterable[BundleFile], *, param: str) -> Bundle:
    """Read a bundle from its files. Raises InvalidValue, and Overloaded if the pool is busy."""
    listed: list[list[object]] = [[file.path, file.content, file.is_executable] for file in files]
    return await _read(_FILES, listed, param, waits=False)


async def _read(computation: Computation, content: bytes | list[list[object]], param: str, *, waits: bool) -> Bundle:
    try:
        result = await compute(computation, content, param, waits=waits)
    except TooCostly as error:
        raise InvalidValue(f"Invalid '{param}': it takes too much time or memory to read.", param=param) from error
    except ComputationFailed as error:
        raise InvalidValue(f"Invalid '{param}': the files cannot be read.", param=param) from error
    head, _, archive = result.partition(b"\n")
    values = json.loads(head)
    if "message" in values:
        raise InvalidValue(values["message"], param=param)
    return Bundle(**values, archive=archive)
