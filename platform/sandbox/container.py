"""One container: a process tree started by bubblewrap, and the connection to the agent inside it."""

import asyncio
import itertools
import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandbox import syscalls
from sandbox.frames import MAX_HEAD, Frame, ProtocolError, receive, send
from sandbox.limits import Limits

_INSIDE = Path(__file__).parent / "inside"
_NOBODY = 65534
# Ids that no account uses. If the service runs as root, each container gets an id of its own, so that a process that
# escapes its namespaces owns nothing of the host or of another container.
_FIRST_USER, _USERS = 2_000_000_000, 100_000
# Time for the answer of the agent beyond the time limit of the call itself.
_ANSWER_SECONDS = 10.0
_PLATFORM_ROOT = Path(__file__).resolve().parents[2]
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Certificates of authorities, for programs that use the network. Private keys are elsewhere in /etc.
_CERTIFICATES = ("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted")
_PROXY_BACKLOG = 16
_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64")
_PASSWD = b"nobody:x:65534:65534:nobody:/mnt/data:/bin/sh\n"
_GROUP = b"nogroup:x:65534:\n"
_users = itertools.count()


class ContainerUnavailable(Exception):
    """The container has ended or could not be started; the message may have the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rootfs:
    """Programs that containers are built from: bubblewrap, a Python, and its directories outside of `/usr`."""

    bwrap: str
    python: str
    folders: Sequence[str] = ()


class SandboxContainer:
    """A running container. Its agent handles one request at a time; further requests wait."""

    def __init__(self, process: asyncio.subprocess.Process, child: int, limits: Limits, channel: socket.socket) -> None:
        self._process = process
        self._child = child
        # Carries the proxy's socket, which waits in the channel until `open_proxy` receives it.
        self._channel = channel
        self._proxy: socket.socket | None = None
        self._limits = limits
        self._lock = asyncio.Lock()

    @property
    def is_alive(self) -> bool:
        """True while the container's process tree exists."""
        return self._process.returncode is None

    async def request(self, head: dict[str, Any], body: bytes = b"") -> Frame:
        """Send a request to the agent and return its answer.

        A container that does not answer in time is ended. Raises ContainerUnavailable.
        """
        async with self._lock:
            if not self.is_alive:
                raise ContainerUnavailable
            answer = asyncio.ensure_future(self._exchange(Frame(head=head, body=body)))
            try:
                # Shielded: if the caller leaves, the answer still has to be read off the pipe.
                return await asyncio.shield(answer)
            except (ProtocolError, TimeoutError) as lost:
                await self.stop()
                raise ContainerUnavailable from lost
            except asyncio.CancelledError:
                await self._interrupt(answer)
                raise

    async def open_proxy(self) -> None:
        """Listen on the proxy's address in the container, and make its programs use it. Raises ContainerUnavailable."""
        if self._proxy is None:
            try:
                # Sent by the agent before its first answer, and so before the container was ready.
                _, [number], _, _ = socket.recv_fds(self._channel, 16, 1)
            except (OSError, ValueError) as error:
                raise ContainerUnavailable("the container has no proxy socket") from error
            self._proxy = socket.socket(fileno=number)
            self._proxy.setblocking(False)  # noqa: FBT003 - the standard library's
            self._proxy.listen(_PROXY_BACKLOG)
            await self.request({"op": "proxy"})

    async def accept(self) -> socket.socket:
        """Wait for a connection to the proxy and return it. Raises ContainerUnavailable."""
        if self._proxy is None or not self.is_alive:
            raise ContainerUnavailable
        connection, _ = await asyncio.get_running_loop().sock_accept(self._proxy)
        return connection

    async def _exchange(self, request: Frame) -> Frame:
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise ProtocolError("no pipes")
        async with asyncio.timeout(request.head.get("seconds", 0) + _ANSWER_SECONDS):
            await send(writer, request)
            return await receive(reader, max_head=MAX_HEAD, max_body=self._limits.data)

    async def _interrupt(self, answer: "asyncio.Future[Frame]") -> None:
        """Make the agent stop the current call; end the container if that takes too long."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                # The agent stops a call when any further request arrives. Both answers have to be read: an unread one
                # would be taken for the answer to the next request.
                await asyncio.gather(answer, self._send_after(answer, Frame(head={"op": "stop"})))
        except (ProtocolError, TimeoutError):
            self.kill()
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _send_after(self, answer: "asyncio.Future[Frame]", request: Frame) -> None:
        reader, writer = self._process.stdout, self._process.stdin
        if reader is not None and writer is not None:
            await send(writer, request)
            await answer
            await receive(reader, max_head=MAX_HEAD, max_body=self._limits.data)

    def kill(self) -> None:
        """Kill all processes of the container without waiting for them."""
        # The child is process 1 of the PID namespace; when it dies, the kernel kills all others in it. A pidfd cannot
        # hit another process that got the same number in the meantime.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Kill all processes of the container and wait for their end."""
        self.kill()
        await self._process.wait()

    def __del__(self) -> None:
        os.close(self._child)
        self._channel.close()
        if self._proxy is not None:
            self._proxy.close()


async def start(rootfs: Rootfs, limits: Limits) -> SandboxContainer:
    """Start a container that is ready for requests. Raises ContainerUnavailable with the reason of the system."""
    try:
        return await _start(rootfs, limits)
    except OSError as error:
        raise ContainerUnavailable(str(error)) from error


async def _start(rootfs: Rootfs, limits: Limits) -> SandboxContainer:
    reading, writing = os.pipe()
    data = {"/opt/inside/agent.py": (_INSIDE / "agent.py").read_bytes()}
    data["/opt/inside/interpreter.py"] = (_INSIDE / "interpreter.py").read_bytes()
    data |= {"/etc/passwd": _PASSWD, "/etc/group": _GROUP}
    # Passed as file descriptors: the user that bubblewrap runs as may be unable to read this checkout.
    files = {path: _memory_file(content) for path, content in data.items()}
    filter_ = syscalls.program()
    seccomp = _memory_file(filter_) if filter_ else None
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - as above
    passed = [writing, theirs.fileno(), *files.values(), *([seccomp] if seccomp is not None else [])]
    try:
        process = await asyncio.create_subprocess_exec(
            *_command(rootfs, limits, files=files, seccomp=seccomp, info=writing, channel=theirs.fileno()),
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
        ours.close()
        raise
    finally:
        theirs.detach()
        for number in passed:
            os.close(number)
    return await _wait_until_ready(process, reading, limits, ours)


async def _wait_until_ready(
    process: asyncio.subprocess.Process, info: int, limits: Limits, channel: socket.socket
) -> SandboxContainer:
    try:
        # bubblewrap writes the pid of its child to this pipe, and closes it without writing if it fails.
        described = await asyncio.to_thread(_read_all, info)
        child = os.pidfd_open(json.loads(described)["child-pid"])
        container = SandboxContainer(process, child, limits, channel)
        # The first answer proves that the agent runs.
        await container.request({"op": "list"})
    except (OSError, ValueError, KeyError, ContainerUnavailable) as error:
        channel.close()
        with suppress(ProcessLookupError):
            process.kill()
        reason = (await process.stderr.read()).decode(errors="replace").strip() if process.stderr else ""
        await process.wait()
        raise ContainerUnavailable(reason or "bubblewrap did not start") from error
    return container


def _read_all(number: int) -> bytes:
    with open(number, "rb") as file:
        return file.read()


def _memory_file(content: bytes) -> int:
    """Return the descriptor of an anonymous file with this content."""
    number = os.memfd_create("inside")
    os.write(number, content)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _user() -> dict[str, Any]:
    """Return the `subprocess` arguments for the user that bubblewrap runs as."""
    if os.geteuid() != 0:
        return {}
    number = _FIRST_USER + next(_users) % _USERS
    return {"user": number, "group": number, "extra_groups": []}


def _command(
    rootfs: Rootfs, limits: Limits, *, files: dict[str, int], seccomp: int | None, info: int, channel: int
) -> Sequence[str]:
    return [
        rootfs.bwrap,
        *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *("--uid", str(_NOBODY), "--gid", str(_NOBODY), "--hostname", "container", "--cap-drop", "ALL"),
        *("--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *_system(rootfs),
        *("--proc", "/proc", "--dir", "/dev"),
        *(word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *("--symlink", "/proc/self/fd", "/dev/fd"),
        *_tmpfs("/mnt/data", limits.data),
        *_tmpfs("/mnt/skills", limits.skills),
        *_tmpfs("/tmp", limits.scratch),  # noqa: S108 - the container's own
        *_tmpfs("/dev/shm", limits.shared),  # noqa: S108
        *(word for path, number in files.items() for word in ("--perms", "0444", "--ro-bind-data", str(number), path)),
        *("--remount-ro", "/", "--chdir", "/mnt/data", "--info-fd", str(info)),
        *(("--seccomp", str(seccomp)) if seccomp is not None else ()),
        *("--", rootfs.python, "-I", "-S", "-u", "/opt/inside/agent.py", json.dumps(asdict(limits)), str(channel)),
    ]


def _tmpfs(path: str, size: int) -> list[str]:
    return ["--perms", "0700", "--size", str(size), "--tmpfs", path]


def _system(rootfs: Rootfs) -> list[str]:
    """Return the arguments that mount the host's programs and libraries read-only, and nothing else of the host."""
    words = ["--ro-bind", "/usr", "/usr"]
    # On merged-/usr systems these are symbolic links, elsewhere directories.
    for name in _FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/fonts", *_CERTIFICATES):
        words += ["--ro-bind-try", name, name]
    words += [word for folder in rootfs.folders for word in ("--ro-bind", folder, folder)]
    return words + _hide_platform(_PLATFORM_ROOT, ["/usr", *(f"/{name}" for name in _FOLDERS), *rootfs.folders])


def _hide_platform(root: Path, mounted: Sequence[str]) -> list[str]:
    """Return the arguments that cover the platform's own files if they are below a mounted directory."""
    if not any(root.is_relative_to(os.path.realpath(folder)) for folder in mounted):
        return []
    return ["--tmpfs", str(root), "--remount-ro", str(root)]
