"""Finds what containers can be made of on this machine, by making one; or says why that is not possible."""

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
_SHARED = ("/usr/", "/bin/", "/lib/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootfsProbe:
    """What there is. Without an `rootfs`, `reason` says in a sentence what is missing."""

    rootfs: Rootfs | None = None
    reason: str = ""
    modules: str = ""


async def find(*, python: str = "") -> RootfsProbe:
    """Look for bubblewrap and a Python, and try them. `python` is the only one that is tried, where it is named."""
    bwrap = container.find_bwrap()
    if bwrap is None:
        return RootfsProbe(reason=f"bubblewrap is not installed ({INSTALL})")
    reason = "there is no Python that everybody may read"
    for candidate in [python] if python else _pythons():
        try:
            rootfs = Rootfs(bwrap=bwrap, python=candidate, folders=await _folders(candidate))
            return RootfsProbe(rootfs=rootfs, modules=await _try(rootfs))
        except (ContainerUnavailable, OSError, ValueError) as failure:
            reason = f"{candidate} cannot be run behind bubblewrap: {failure}"
    return RootfsProbe(reason=reason)


def _pythons() -> Sequence[str]:
    """That of the system, and ours without the packages that the platform has."""
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    return [*([system] if system else []), os.path.realpath(sys.executable)]


async def _folders(python: str) -> Sequence[str]:
    """The folders outside of the system's own that a Python needs."""
    process = await asyncio.create_subprocess_exec(python, "-I", "-S", "-c", _PROBE, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return _beside_the_system([*json.loads(said), str(Path(python).parent.parent)])


def _beside_the_system(folders: Sequence[str]) -> Sequence[str]:
    found = {os.path.realpath(folder) for folder in folders}
    return sorted(folder for folder in found if not f"{folder}/".startswith(_SHARED))


async def _try(rootfs: Rootfs) -> str:
    probe = await container.start(rootfs, Limits())
    try:
        answer = await probe.order({"op": "run", "seconds": 10}, _MODULES.encode())
        return str(answer.head.get("value") or "[]")
    finally:
        await probe.end()
