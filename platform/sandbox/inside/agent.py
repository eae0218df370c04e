"""The agent of a container: process 1, which runs code, enforces limits and ends leftover processes.

As process 1 it cannot be signalled from inside, and as a non-dumpable process its memory cannot be read from inside. It
reads requests from its standard input and writes answers to its standard output; no other process in the container has
access to these. Only the standard library is available here.
"""

import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

DATA = "/mnt/data"
SKILLS = "/mnt/skills"
MOUNTS = (DATA, SKILLS, "/tmp", "/dev/shm")  # noqa: S108 - the container's own
PROXY = ("127.0.0.1", 3128)
INTERPRETER = "/opt/inside/interpreter.py"
# The variable in which a program finds the effect id of its call. `interpreter` has the same name.
EFFECT_ID = "RESPONSES_PLATFORM_EFFECT_ID"
MAX_REPORT = 4 * 1024 * 1024
MAX_PIECE = 1024 * 1024
_PR_SET_DUMPABLE = 4
_LENGTH = struct.Struct(">I")
_TICK = 0.1
# One thread for numeric libraries: they would start one per processor of the host and exceed the process limit.
_ENVIRONMENT = {
    "HOME": DATA,
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


_PROXY_URL = f"http://{PROXY[0]}:{PROXY[1]}"
_PROXY_ENVIRONMENT = {
    **dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), _PROXY_URL),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1"),
}


class Output:
    """Captured output of a process, truncated to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        # The rest is read and dropped: a process that is stuck on a full pipe would never end.
        room = self._limit - len(self._kept)
        self._kept += piece[:room] if room > 0 else b""
        self._dropped += max(0, len(piece) - max(0, room))

    def text(self) -> str:
        truncated = f"\n[{self._dropped} more bytes were cut]" if self._dropped else ""
        return self._kept.decode(errors="replace") + truncated


class Agent:
    """The processes of a container. Between calls only the interpreter exists, stopped by SIGSTOP."""

    def __init__(self, limits: "dict[str, int]", requests: BinaryIO) -> None:
        self._limits = limits
        self._requests = requests
        self._exit_statuses: dict[int, int] = {}
        self._environment = dict(_ENVIRONMENT)
        self._socket_size = _largest_socket()
        self._start_interpreter()

    # -- requests ------------------------------------------------------------------------------------------------------

    def run(self, code: str, seconds: float, *, effect_id: str = "") -> "dict[str, Any]":
        """Execute a cell in the interpreter and return its result."""
        if self._has_ended(self._interpreter.pid):
            self._restart_interpreter()
        process, channel = self._interpreter, self._channel
        _signal(process.pid, signal.SIGCONT)
        report = bytearray()
        sent = json.dumps({"code": code, "effect_id": effect_id}).encode()
        try:
            channel.settimeout(seconds)
            channel.sendall(_LENGTH.pack(len(sent)) + sent)
        except OSError:
            # The interpreter has ended or closed its socket. An empty report ends the wait below immediately.
            report += bytes(_LENGTH.size)
        out, err, stopped = self._wait(process, seconds, channel=channel, report=report)
        found = _parse_report(report)
        if stopped is None and found is None:
            stopped = "the interpreter has ended"
        # Background processes end with the cell: nothing runs in a container between calls.
        if stopped is not None or not self._kill_others(process.pid):
            self._kill_all()
        stopped = self._remove_excess_files() or stopped
        _drain(process, out, err)
        if self._has_ended(process.pid):
            self._restart_interpreter()
        return _result(out, err, stopped=stopped, **(found or {"value": None, "error": None, "images": []}))

    def shell(self, command: str, seconds: float, *, effect_id: str = "") -> "dict[str, Any]":
        """Execute a command with `/bin/sh`, end every process that it started, and return its result."""
        process = self._spawn(["/bin/sh", "-c", command], variables={EFFECT_ID: effect_id} if effect_id else {})
        out, err, stopped = self._wait(process, seconds)
        if not self._kill_others(self._interpreter.pid):
            self._kill_all()
        stopped = self._remove_excess_files() or stopped
        _drain(process, out, err)
        status = self._exit_statuses.pop(process.pid, None)
        code = None if stopped or status is None else os.waitstatus_to_exitcode(status)
        _close(process)
        if self._has_ended(self._interpreter.pid):
            self._restart_interpreter()
        return _result(out, err, stopped=stopped, exit_code=code)

    def use_proxy(self) -> None:
        """Make programs use the proxy. Its socket is served outside of the container."""
        self._environment |= _PROXY_ENVIRONMENT
        # The interpreter has got its environment already.
        self._kill_all()
        self._restart_interpreter()

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start_interpreter(self) -> None:
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        # `-I`: a file of the model named like a standard module must not be imported instead of it.
        self._interpreter = self._spawn([sys.executable, "-I", "-u", INTERPRETER, str(number)], keep=(number,))
        theirs.close()
        self._channel = ours

    def _spawn(
        self, command: "list[str]", keep: "tuple[int, ...]" = (), variables: "Mapping[str, str] | None" = None
    ) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=DATA,
            env={**self._environment, **(variables or {})},
            pass_fds=keep,
            start_new_session=True,
            preexec_fn=self._set_limits,  # noqa: PLW1509 - the agent has no threads
        )
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process

    def _set_limits(self) -> None:
        limits = self._limits
        # These apply to each process; `_exceeded_limit` watches what all of them use together.
        for kind, most in (
            (resource.RLIMIT_AS, limits["memory"]),
            (resource.RLIMIT_NPROC, limits["processes"]),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_FSIZE, limits["data"]),
            (resource.RLIMIT_CPU, limits["seconds"] * 60),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            resource.setrlimit(kind, (most, most))
        os.nice(10)

    def _wait(
        self,
        process: "subprocess.Popen[bytes]",
        seconds: float,
        *,
        channel: "socket.socket | None" = None,
        report: "bytearray | None" = None,
    ) -> "tuple[Output, Output, str | None]":
        """Capture the output until the process is done or has to be stopped.

        Returns stdout, stderr and the reason for stopping, if any. With a `channel`, the process is done as soon as
        `report` is complete.
        """
        out, err = Output(self._limits["output"]), Output(self._limits["output"])
        deadline, checked = time.monotonic() + seconds, 0.0
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout or -1, selectors.EVENT_READ, out)
            ready.register(process.stderr or -1, selectors.EVENT_READ, err)
            ready.register(self._requests, selectors.EVENT_READ)
            if channel is not None:
                channel.setblocking(False)  # noqa: FBT003 - the standard library's
                ready.register(channel, selectors.EVENT_READ, report)
            while True:
                # The end of a shell command is detected only by polling, so the interval is shorter.
                if _read_ready(ready, _TICK if channel is not None else _TICK / 10):
                    return out, err, "the caller has disconnected"
                if (report is not None and _is_complete(report)) or self._has_ended(process.pid):
                    return out, err, None
                if time.monotonic() > deadline:
                    return out, err, f"it took longer than {seconds:g} seconds"
                # Walking through /proc is expensive: once per tick, not once per piece of output.
                if time.monotonic() - checked > _TICK:
                    checked = time.monotonic()
                    if (exceeded := self._exceeded_limit()) is not None:
                        return out, err, exceeded

    def _exceeded_limit(self) -> "str | None":
        """Return the reason for stopping if all processes together exceed a limit, else None."""
        used = sum(map(_process_memory, _other_pids(0))) + _socket_memory(self._socket_size)
        if used > self._limits["memory"]:
            return "it used more memory than allowed"
        if _has_more_locks_than(self._limits["locks"]):
            return f"it held more than {self._limits['locks']} file locks"
        if any(_count_files(mount) > self._limits["files"] for mount in MOUNTS):
            return self._too_many_files
        return None

    @property
    def _too_many_files(self) -> str:
        return f"it created too many files: at most {self._limits['files']} are allowed, so the newest were removed"

    def _remove_excess_files(self) -> "str | None":
        """Remove the newest files beyond the limit; return a message about them, or None if there were none.

        Must run while no process of the model runs. bubblewrap cannot limit the inodes of a tmpfs when it mounts it.
        """
        most = self._limits["files"]
        exceeded = [mount for mount in MOUNTS if _count_files(mount) > most]
        for mount in exceeded:
            _remove_newest(mount, _count_files(mount) - most)
            if _count_files(mount) > most:
                # Directories nested so deeply that no path reaches them. Only the end of the container frees them.
                sys.exit("too many files")
        return self._too_many_files if exceeded else None

    def check_room(self, path: str) -> None:
        """Raise OSError if a new file would exceed the limit of files."""
        if not os.path.lexists(path) and _count_files(DATA) >= self._limits["files"]:
            raise OSError(f"the container has {self._limits['files']} files already, which is the limit")

    def _has_ended(self, number: int) -> bool:
        # As process 1 the agent inherits orphans and has to reap them, too: zombies count against the process limit.
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                ended, status = 0, 0
            if not ended:
                return number in self._exit_statuses or not os.path.exists(f"/proc/{number}")  # noqa: PTH110
            self._exit_statuses[ended] = status

    def _kill_others(self, spared: int) -> bool:
        """Kill all processes except the spared one, which is stopped. Return False if some survived for a second."""
        # One system call stops all of them, so no process can fork while the list is read and killed.
        _signal(-1, signal.SIGSTOP)
        for pid in _other_pids(spared):
            _signal(pid, signal.SIGKILL)
        for _ in range(1000):
            self._has_ended(spared)
            if not _other_pids(spared):
                return True
            time.sleep(0.001)
        return False

    def _kill_all(self) -> None:
        # A single kill(-1) reaches every process except this one; a loop could miss one that forks.
        _signal(-1, signal.SIGKILL)
        while _other_pids(0):
            self._has_ended(0)

    def _restart_interpreter(self) -> None:
        """Start a new interpreter. The variables of the previous one are lost."""
        _close(self._interpreter)
        self._channel.close()
        # Process ids may be reused from here on.
        self._exit_statuses.clear()
        self._start_interpreter()


def _read_ready(ready: selectors.DefaultSelector, seconds: float) -> bool:
    """Read the output that is available; return whether the service sent another request or disconnected."""
    for key, _ in ready.select(seconds):
        # The service sends nothing during a call, except to interrupt it.
        if key.data is None:
            return True
        piece = _read(key.fd)
        if not piece:
            ready.unregister(key.fileobj)
        elif isinstance(key.data, Output):
            key.data.add(piece)
        else:
            key.data.extend(piece)
    return False


def _drain(process: "subprocess.Popen[bytes]", out: Output, err: Output) -> None:
    """Read the rest of the pipes after all writers have ended."""
    for pipe, output in ((process.stdout, out), (process.stderr, err)):
        while pipe is not None and (piece := _read(pipe.fileno())):
            output.add(piece)


def _result(out: Output, err: Output, *, stopped: "str | None", **more: Any) -> "dict[str, Any]":
    return {"stdout": out.text(), "stderr": err.text(), "stopped": stopped, **more}


def _other_pids(spared: int) -> "list[int]":
    """Return the ids of all running processes except this one and the spared one."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [number for number in numbers if number not in (1, spared) and _is_running(number)]


def _is_running(number: int) -> bool:
    try:
        # The process name in parentheses may contain anything, so the state is read after the last parenthesis.
        # Zombies use nothing but their id.
        with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _signal(number: int, signal_number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal_number)


def _process_memory(number: int) -> int:
    """Return the anonymous and shared memory of a process and its page tables in bytes."""
    # Shared memory is counted for each process that maps it; otherwise it would count for none. Page tables are counted
    # because a page of zeros that is mapped at many distant addresses takes no other memory.
    return sum(
        int(line.split()[1]) * 1024
        for line in _lines(f"/proc/{number}/status")
        if line.startswith(("RssAnon:", "RssShmem:", "VmPTE:"))
    )


def _largest_socket() -> int:
    """Return the maximum size of the buffer of a Unix or UDP socket, in bytes."""
    # A message is accepted while the buffer is not full, and may be as large as the buffer. The seccomp filter keeps
    # processes from changing these sizes.
    with socket.socket(socket.AF_UNIX) as sample:
        sizes = [sample.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    return 2 * max(sizes)


def _socket_memory(size: int) -> int:
    """Return the maximum memory that all sockets of the container can hold, in bytes."""
    # The kernel shows unprivileged processes the number of Unix sockets, including sockets that are only in messages,
    # but not their contents. TCP buffers grow by themselves, so their contents are added.
    lines = _lines("/proc/net/sockstat")
    used = sum(int(line.split()[2]) for line in lines if line.startswith("sockets:"))
    queued = 0
    for name in ("tcp", "tcp6"):
        for line in _lines(f"/proc/net/{name}")[1:]:
            sent, received = line.split()[4].split(":")
            queued += int(sent, 16) + int(received, 16)
    return used * size + queued


def _has_more_locks_than(most: int) -> bool:
    """Return whether the container holds more file locks than this."""
    count = 0
    try:
        with open("/proc/locks", "rb", buffering=0) as file:  # noqa: PTH123
            # Not read to its end: for each piece the kernel goes through the list from the start.
            while count <= most and (piece := file.read(MAX_PIECE)):
                count += piece.count(b"\n")
    except OSError:
        return False
    return count > most


def _lines(path: str) -> "list[str]":
    """Return the lines of a file of `/proc`; none if it does not exist (any more)."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123
            return file.read().splitlines()
    except OSError:
        return []


def _read(number: int) -> bytes:
    try:
        return os.read(number, 65536)
    except (BlockingIOError, ConnectionResetError):
        return b""


def _close(process: "subprocess.Popen[bytes]") -> None:
    process.returncode = 0
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _is_complete(report: bytearray) -> bool:
    """Return whether a report is complete or too long to read on."""
    if len(report) < _LENGTH.size or len(report) > MAX_REPORT:
        return len(report) > MAX_REPORT
    (length,) = _LENGTH.unpack_from(report)
    return len(report) >= _LENGTH.size + int(length)


def _parse_report(report: bytearray) -> "dict[str, Any] | None":
    """Return the value, error and images of a report, or None if it is malformed."""
    # Code of the model can write anything to this socket, so every field is checked.
    try:
        found = json.loads(report[_LENGTH.size :])
        images = [name for name in found["images"] if isinstance(name, str)][:64]
        value, error = (found[name] if isinstance(found[name], str) else None for name in ("value", "error"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return {"value": value, "error": error, "images": images}


def _count_files(mount: str) -> int:
    """Return the number of inodes in use."""
    usage = os.statvfs(mount)
    return usage.f_files - usage.f_ffree


def _remove_newest(mount: str, number: int) -> None:
    """Remove this many files and empty directories, the most recently changed ones first."""
    found: list[tuple[int, str, bool]] = []
    # Not `os.walk`, which recurses in older versions of Python: the model chooses the depth.
    waiting = [mount]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                found.append((entry.stat(follow_symlinks=False).st_ctime_ns, entry.path, is_folder))
                if is_folder:
                    waiting.append(entry.path)
    # In reverse order, a directory comes after its contents if their times are the same.
    for _, path, is_folder in sorted(found, reverse=True):
        if number <= 0:
            return
        with suppress(OSError):
            (os.rmdir if is_folder else os.unlink)(path)
            number -= 1


# -- files -------------------------------------------------------------------------------------------------------------


def list_files(limit: int = 1000) -> "list[dict[str, Any]]":
    """List the regular files below `/mnt/data`; symbolic links are skipped."""
    found: list[dict[str, Any]] = []
    for folder, inner, names in os.walk(DATA):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__pycache__")))
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118
            try:
                seen = os.lstat(path)
                path.encode()
            except (OSError, UnicodeEncodeError):
                continue
            if stat.S_ISREG(seen.st_mode) and len(found) < limit:
                found.append({"path": path, "size": seen.st_size, "changed": seen.st_mtime_ns})
    return found


def _checked_path(path: str) -> str:
    """Return the path if it is below `/mnt/data` without symbolic links. Raises OSError."""
    # A link could lead to something that belongs to this process.
    folder = os.path.dirname(path)  # noqa: PTH120
    if os.path.realpath(folder) != folder or not f"{folder}/".startswith(f"{DATA}/"):
        raise OSError(f"{path} is not in a folder of {DATA}")
    return path


def read_file(path: str, offset: int, size: int) -> bytes:
    """Read up to `size` bytes of a regular file; empty at its end. Raises OSError."""
    # O_NONBLOCK: opening a FIFO that the model created would otherwise block forever.
    number = os.open(_checked_path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(number, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(f"{path} is not a regular file")
        file.seek(offset)
        return file.read(size)


def write_file(path: str, content: bytes) -> None:
    """Create or replace a file and its parent directories. Raises OSError."""
    os.makedirs(os.path.dirname(_checked_path(path)), exist_ok=True)  # noqa: PTH103, PTH120
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "wb") as file:  # noqa: PTH123
        file.write(content)


def mount_skill(name: str, content: bytes) -> None:
    """Unpack the archive of a skill into a folder of this name, replacing an existing one. Raises OSError."""
    # Imported here: most containers have no skills, and every import delays the start of a container.
    import shutil
    import zipfile
    from io import BytesIO

    target = os.path.join(SKILLS, name)  # noqa: PTH118
    # The model may have replaced the folder with a link, for example to the files of this process.
    if os.path.islink(target):  # noqa: PTH114
        os.unlink(target)  # noqa: PTH108
    elif os.path.lexists(target):
        shutil.rmtree(target)
    with zipfile.ZipFile(BytesIO(content)) as archive:
        for entry in archive.infolist():
            # The platform has checked the paths. The first part is the author's folder, which `name` replaces.
            path = os.path.join(target, entry.filename.partition("/")[2])  # noqa: PTH118
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            mode = 0o755 if entry.external_attr >> 16 & stat.S_IXUSR else 0o644
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123
                file.write(archive.read(entry))


# -- connection to the service -----------------------------------------------------------------------------------------


def _read_exactly(source: BinaryIO, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = source.read(min(size - len(found), MAX_PIECE))
        if not piece:
            # The service closed the connection. When process 1 exits, the kernel ends the whole container.
            sys.exit(0)
        found += piece
    return bytes(found)


def _handle(agent: Agent, request: "dict[str, Any]", body: bytes) -> "tuple[dict[str, Any], bytes]":
    match request["op"]:
        case "run":
            return agent.run(body.decode(), request["seconds"], effect_id=request.get("effect_id", "")), b""
        case "shell":
            return agent.shell(body.decode(), request["seconds"], effect_id=request.get("effect_id", "")), b""
        case "list":
            return {"files": list_files()}, b""
        case "read":
            return {}, read_file(request["path"], request["offset"], MAX_PIECE)
        case "write":
            agent.check_room(request["path"])
            write_file(request["path"], body)
        case "proxy":
            agent.use_proxy()
        case "mount":
            mount_skill(request["path"], body)
        case "remove":
            os.unlink(_checked_path(request["path"]))  # noqa: PTH108
    return {}, b""


def _hand_over_proxy(number: int) -> None:
    """Send the service a socket that is bound to the proxy's address in this container's network."""
    # A socket stays in the network namespace in which it was created, even if a process elsewhere accepts its
    # connections. The service listens on it only if the container may use a network. Nothing else connects the
    # container with the outside.
    with socket.socket(fileno=number) as channel, socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(PROXY)
        socket.send_fds(channel, [b"proxy"], [bound.fileno()])


def main() -> None:
    """Handle requests until the service closes the connection."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    limits = json.loads(sys.argv[1])
    # Before the first process of the model starts, which could otherwise inherit the channel.
    _hand_over_proxy(int(sys.argv[2]))
    # Unbuffered: `select` does not see a request that is already in a buffer.
    source = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115, PTH123 - open as long as the process lives
    target = open(os.dup(1), "wb")  # noqa: SIM115, PTH123
    # Child processes inherit 0, 1 and 2; the duplicates above are close-on-exec.
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    agent = Agent(limits, source)
    while True:
        (length,) = _LENGTH.unpack(_read_exactly(source, 4))
        request = json.loads(_read_exactly(source, length))
        body = _read_exactly(source, request["size"])
        try:
            head, content = _handle(agent, request, body)
        except (OSError, ValueError, RecursionError) as error:
            head, content = {"failed": str(error)}, b""
        written = json.dumps({**head, "size": len(content)}).encode()
        target.write(_LENGTH.pack(len(written)) + written + content)
        target.flush()


if __name__ == "__main__":
    main()
