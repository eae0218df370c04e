"""One container as the service has it: processes behind bubblewrap, and the conversation with their keeper."""

import asyncio
import itertools
import json
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox import syscalls
from sandbox.frames import MAX_HEAD, Frame, ProtocolError, receive, send
from sandbox.limits import Limits

_INSIDE = Path(__file__).parent / "inside"
_NOBODY = 65534
# Numbers that no account has: each container of a service that runs as root gets one of its own.
_FIRST_USER, _USERS = 2_000_000_000, 100_000
_PATIENCE = 10.0
_OURS = Path(__file__).resolve().parents[2]
_DEVICES = ("null", "zero", "full", "random", "urandom")
_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64")
_PASSWD = b"nobody:x:65534:65534:nobody:/mnt/data:/bin/sh\n"
_GROUP = b"nogroup:x:65534:\n"
_users = itertools.count()


class ContainerUnavailable(Exception):
    """The container is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rootfs:
    """What containers are made of: bubblewrap, a Python, and the folders that this Python needs beside `/usr`."""

    bwrap: str
    python: str
    folders: Sequence[str] = ()


class SandboxContainer:
    """A running container. One order at a time; whoever sends the next one waits."""

    def __init__(self, process: asyncio.subprocess.Process, child: int, limits: Limits) -> None:
        self._process = process
        self._child = child
        self._limits = limits
        self._lock = asyncio.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether the container is there."""
        return self._process.returncode is None

    async def order(self, head: dict[str, Any], body: bytes = b"") -> Frame:
        """Have the keeper do something. Raises Gone; a container that does not answer in time is ended."""
        async with self._lock:
            if not self.is_alive:
                raise ContainerUnavailable
            answer = asyncio.ensure_future(self._exchange(Frame(head=head, body=body)))
            try:
                return await asyncio.shield(answer)
            except (ProtocolError, TimeoutError) as lost:
                await self.end()
                raise ContainerUnavailable from lost
            except asyncio.CancelledError:
                await self._stop(answer)
                raise

    async def _exchange(self, order: Frame) -> Frame:
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise ProtocolError("no pipes")
        async with asyncio.timeout(order.head.get("seconds", 0) + _PATIENCE):
            await send(writer, order)
            return await receive(reader, max_head=MAX_HEAD, max_body=self._limits.data)

    async def _stop(self, answer: "asyncio.Future[Frame]") -> None:
        """Have the keeper stop what it does: any further order makes it. Both answers are read, lest the next order
        gets one of them; where that takes too long, the container is at its end."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.gather(answer, self._exchange_after(answer, Frame(head={"op": "stop"})))
        except (ProtocolError, TimeoutError):
            self.kill()
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _exchange_after(self, answer: "asyncio.Future[Frame]", order: Frame) -> None:
        reader, writer = self._process.stdout, self._process.stdin
        if reader is not None and writer is not None:
            await send(writer, order)
            await answer
            await receive(reader, max_head=MAX_HEAD, max_body=self._limits.data)

    def kill(self) -> None:
        """End everything inside at once: with its first process the kernel ends all others."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """End everything inside, and wait until it has gone."""
        self.kill()
        await self._process.wait()

    def __del__(self) -> None:
        os.close(self._child)


async def start(rootfs: Rootfs, limits: Limits) -> SandboxContainer:
    """Start a container, ready for orders. Raises Gone with the reason where the system does not allow it."""
    try:
        return await _start(rootfs, limits)
    except OSError as error:
        raise ContainerUnavailable(str(error)) from error


async def _start(rootfs: Rootfs, limits: Limits) -> SandboxContainer:
    reading, writing = os.pipe()
    data = {"/opt/inside/agent.py": (_INSIDE / "agent.py").read_bytes()}
    data["/opt/inside/interpreter.py"] = (_INSIDE / "interpreter.py").read_bytes()
    data |= {"/etc/passwd": _PASSWD, "/etc/group": _GROUP}
    files = {path: _memory(content) for path, content in data.items()}
    filter_ = syscalls.program()
    seccomp = _memory(filter_) if filter_ else None
    passed = [writing, *files.values(), *([seccomp] if seccomp is not None else [])]
    try:
        process = await asyncio.create_subprocess_exec(
            *_command(rootfs, limits, files=files, seccomp=seccomp, info=writing),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=passed,
            env={},
            cwd="/",
            start_new_session=True,
            **_user(),
        )
    except OSError:
        os.close(reading)
        raise
    finally:
        for number in passed:
            os.close(number)
    return await _started(process, reading, limits)


async def _started(process: asyncio.subprocess.Process, info: int, limits: Limits) -> SandboxContainer:
    try:
        said = await asyncio.to_thread(_read_all, info)
        child = os.pidfd_open(json.loads(said)["child-pid"])
        container = SandboxContainer(process, child, limits)
        await container.order({"op": "list"})
    except (OSError, ValueError, KeyError, ContainerUnavailable) as error:
        with suppress(ProcessLookupError):
            process.kill()
        why = (await process.stderr.read()).decode(errors="replace").strip() if process.stderr else ""
        await process.wait()
        raise ContainerUnavailable(why or "bubblewrap did not start") from error
    return container


def _read_all(number: int) -> bytes:
    with open(number, "rb") as file:
        return file.read()


def _memory(content: bytes) -> int:
    """A file without a name that holds these bytes, for bubblewrap to read."""
    number = os.memfd_create("inside")
    os.write(number, content)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _user() -> dict[str, Any]:
    """Whom bubblewrap is run as: somebody with no rights, and no one else's processes or files."""
    if os.geteuid() != 0:
        return {}
    number = _FIRST_USER + next(_users) % _USERS
    return {"user": number, "group": number, "extra_groups": []}


def _command(rootfs: Rootfs, limits: Limits, *, files: dict[str, int], seccomp: int | None, info: int) -> Sequence[str]:
    return [
        rootfs.bwrap,
        *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *("--uid", str(_NOBODY), "--gid", str(_NOBODY), "--hostname", "container", "--cap-drop", "ALL"),
        *("--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *_system(rootfs),
        *("--proc", "/proc", "--dir", "/dev"),
        *(word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *("--symlink", "/proc/self/fd", "/dev/fd"),
        *_room("/mnt/data", limits.data),
        *_room("/tmp", limits.scratch),  # noqa: S108 - the container's own
        *_room("/dev/shm", limits.shared),  # noqa: S108
        *(word for path, number in files.items() for word in ("--perms", "0444", "--ro-bind-data", str(number), path)),
        *("--remount-ro", "/", "--chdir", "/mnt/data", "--info-fd", str(info)),
        *(("--seccomp", str(seccomp)) if seccomp is not None else ()),
        *("--", rootfs.python, "-I", "-S", "-u", "/opt/inside/agent.py", json.dumps(limits.told())),
    ]


def _room(path: str, size: int) -> list[str]:
    return ["--perms", "0700", "--size", str(size), "--tmpfs", path]


def _system(rootfs: Rootfs) -> list[str]:
    """The programs and libraries of this system, and nothing else of it."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in _FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/fonts"):
        words += ["--ro-bind-try", name, name]
    words += [word for folder in rootfs.folders for word in ("--ro-bind", folder, folder)]
    return words + _hidden(_OURS, ["/usr", *(f"/{name}" for name in _FOLDERS), *rootfs.folders])


def _hidden(ours: Path, shown: Sequence[str]) -> list[str]:
    """What covers the platform's own files, where they lie in a folder that is shown."""
    if not any(ours.is_relative_to(os.path.realpath(folder)) for folder in shown):
        return []
    return ["--tmpfs", str(ours), "--remount-ro", str(ours)]


def find_bwrap() -> str | None:
    """Where bubblewrap is; None: it is not installed."""
    return shutil.which("bwrap")
