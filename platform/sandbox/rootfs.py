"""Detection of the programs that containers are built from, verified by starting one container."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox import container
from sandbox.container import ContainerUnavailable, Rootfs
from sandbox.limits import Limits

INSTALL = "apt-get install bubblewrap"
_PROBE = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix]))"
_MODULES = "import importlib.util\n[n for n in ('numpy', 'pandas', 'matplotlib') if importlib.util.find_spec(n)]"
# Directories that every container has anyway; a Python below them needs no further bind mount.
_SHARED = ("/usr/", "/bin/", "/lib/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootfsProbe:
    """Result of the detection. If `rootfs` is None, `reason` is a sentence that says what is missing.

    `modules` is the JSON-like list of the installed scientific packages (numpy, pandas, matplotlib).
    """

    rootfs: Rootfs | None = None
    reason: str = ""
    modules: str = ""


async def probe(*, python: str = "") -> RootfsProbe:
    """Find bubblewrap and a Python interpreter and start a container with them.

    If `python` is given, no other interpreter is tried.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return RootfsProbe(reason=f"bubblewrap is not installed ({INSTALL})")
    reason = "there is no Python that all users may read"
    for candidate in [python] if python else _pythons():
        try:
            rootfs = Rootfs(bwrap=bwrap, python=candidate, folders=await _folders(candidate))
            # Kernels, distributions and container runtimes restrict user namespaces in many ways: only a real start
            # shows whether this machine allows them.
            return RootfsProbe(rootfs=rootfs, modules=await _installed_modules(rootfs))
        except (ContainerUnavailable, OSError, ValueError) as failure:
            reason = f"{candidate} cannot run inside bubblewrap: {failure}"
    return RootfsProbe(reason=reason)


def _pythons() -> Sequence[str]:
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    # realpath leads from the virtual environment to its base interpreter, without the platform's packages.
    return [*([system] if system else []), os.path.realpath(sys.executable)]


async def _folders(python: str) -> Sequence[str]:
    """Return the directories outside of `_SHARED` that a Python interpreter needs."""
    process = await asyncio.create_subprocess_exec(python, "-I", "-S", "-c", _PROBE, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return _outside_of_shared([*json.loads(output), str(Path(python).parent.parent)])


def _outside_of_shared(folders: Sequence[str]) -> Sequence[str]:
    real = {os.path.realpath(folder) for folder in folders}
    return sorted(folder for folder in real if not f"{folder}/".startswith(_SHARED))


async def _installed_modules(rootfs: Rootfs) -> str:
    started = await container.start(rootfs, Limits())
    try:
        answer = await started.request({"op": "run", "seconds": 10}, _MODULES.encode())
        return str(answer.head.get("value") or "[]")
    finally:
        await started.stop()
