"""The first process inside of a container: starts what runs there, bounds it, and ends what is left of it.

As process 1 it cannot be signalled from inside, and as one that is not dumpable it cannot be looked into. It reads
orders from its standard input and answers on its standard output; no other process inside gets hold of these.
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
from contextlib import suppress
from typing import Any, BinaryIO

DATA = "/mnt/data"
MOUNTS = (DATA, "/tmp", "/dev/shm")  # noqa: S108 - the container's own
INTERPRETER = "/opt/inside/interpreter.py"
MAX_REPORT = 4 * 1024 * 1024
MAX_PIECE = 1024 * 1024
_PR_SET_DUMPABLE = 4
_LENGTH = struct.Struct(">I")
_TICK = 0.1
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


class Output:
    """What a process writes, as much of it as may be kept; the rest is read and forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._lost = 0

    def add(self, piece: bytes) -> None:
        room = self._most - len(self._kept)
        self._kept += piece[:room] if room > 0 else b""
        self._lost += max(0, len(piece) - max(0, room))

    def text(self) -> str:
        cut = f"\n[{self._lost} more bytes were cut]" if self._lost else ""
        return self._kept.decode(errors="replace") + cut


class Agent:
    """The processes of the container. Between calls there is the interpreter, and it stands still."""

    def __init__(self, limits: "dict[str, int]", orders: BinaryIO) -> None:
        self._limits = limits
        self._orders = orders
        self._ended: dict[int, int] = {}
        self._start_interpreter()

    # -- orders --------------------------------------------------------------------------------------------------------

    def run(self, code: str, seconds: float) -> "dict[str, Any]":
        """Execute a cell in the interpreter."""
        if self._is_over(self._interpreter.pid):
            self._renew()
        process, channel = self._interpreter, self._channel
        _signal(process.pid, signal.SIGCONT)
        report = bytearray()
        sent = code.encode()
        try:
            channel.settimeout(seconds)
            channel.sendall(_LENGTH.pack(len(sent)) + sent)
        except OSError:
            report += bytes(_LENGTH.size)  # it has ended, or has closed its end
        out, err, stopped = self._follow(process, seconds, channel=channel, report=report)
        found = _report(report)
        if stopped is None and found is None:
            stopped = "the interpreter has ended"
        if stopped is not None or not self._end_others(process.pid):
            self._end_everything()
        _drain(process, out, err)
        if self._is_over(process.pid):
            self._renew()
        return _answer(out, err, stopped=stopped, **(found or {"value": None, "error": None, "images": []}))

    def shell(self, command: str, seconds: float) -> "dict[str, Any]":
        """Execute a command in a shell; nothing that it starts survives it."""
        process = self._spawn(["/bin/sh", "-c", command])
        out, err, stopped = self._follow(process, seconds)
        if not self._end_others(self._interpreter.pid):
            self._end_everything()
        _drain(process, out, err)
        status = self._ended.pop(process.pid, None)
        code = None if stopped or status is None else os.waitstatus_to_exitcode(status)
        _close(process)
        if self._is_over(self._interpreter.pid):
            self._renew()
        return _answer(out, err, stopped=stopped, exit_code=code)

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start_interpreter(self) -> None:
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        # The flag `-I` keeps the folder with the model's files out of the way of the standard library.
        self._interpreter = self._spawn([sys.executable, "-I", "-u", INTERPRETER, str(number)], keep=(number,))
        theirs.close()
        self._channel = ours

    def _spawn(self, command: "list[str]", keep: "tuple[int, ...]" = ()) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=DATA,
            env=_ENVIRONMENT,
            pass_fds=keep,
            start_new_session=True,
            preexec_fn=self._bound,  # noqa: PLW1509 - the keeper has no threads
        )
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process

    def _bound(self) -> None:
        limits = self._limits
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

    def _follow(
        self,
        process: "subprocess.Popen[bytes]",
        seconds: float,
        *,
        channel: "socket.socket | None" = None,
        report: "bytearray | None" = None,
    ) -> "tuple[Output, Output, str | None]":
        """Read what is written until the process is done, or the reason why it must not go on."""
        out, err = Output(self._limits["output"]), Output(self._limits["output"])
        deadline, looked = time.monotonic() + seconds, 0.0
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout or -1, selectors.EVENT_READ, out)
            ready.register(process.stderr or -1, selectors.EVENT_READ, err)
            ready.register(self._orders, selectors.EVENT_READ)
            if channel is not None:
                channel.setblocking(False)  # noqa: FBT003 - the standard library's
                ready.register(channel, selectors.EVENT_READ, report)
            while True:
                if _listen(ready, _TICK if channel is not None else _TICK / 10):
                    return out, err, "nobody waits for it any more"
                if (report is not None and _is_whole(report)) or self._is_over(process.pid):
                    return out, err, None
                if time.monotonic() > deadline:
                    return out, err, f"it took longer than {seconds:g} seconds"
                if time.monotonic() - looked > _TICK:
                    looked = time.monotonic()
                    if (too_much := self._too_much()) is not None:
                        return out, err, too_much

    def _too_much(self) -> "str | None":
        """What everything together takes too much of; each process alone is bounded by the kernel."""
        if sum(map(_resident, _others(0))) > self._limits["memory"]:
            return "it took more memory than it may"
        for mount in MOUNTS:
            held = os.statvfs(mount)
            if held.f_files - held.f_ffree > self._limits["files"]:
                # Emptying it again would take as long: the container is at its end.
                sys.exit("too many files")
        return None

    def _is_over(self, number: int) -> bool:
        """Whether a process has ended. Whoever has lost its parent is ours to bury, too."""
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                ended, status = 0, 0
            if not ended:
                return number in self._ended or not os.path.exists(f"/proc/{number}")  # noqa: PTH110
            self._ended[ended] = status

    def _end_others(self, spared: int) -> bool:
        """End everything but one process, which stands still. False: it was not to be done.

        The kernel stops all of them in one go, so that nobody forks away while we look around.
        """
        _signal(-1, signal.SIGSTOP)
        for other in _others(spared):
            _signal(other, signal.SIGKILL)
        for _ in range(1000):
            self._is_over(spared)
            if not _others(spared):
                return True
            time.sleep(0.001)
        return False

    def _end_everything(self) -> None:
        """One call of the kernel's that nothing escapes."""
        _signal(-1, signal.SIGKILL)
        while _others(0):
            self._is_over(0)

    def _renew(self) -> None:
        """Begin with a fresh interpreter; what its predecessor knew is lost."""
        _close(self._interpreter)
        self._channel.close()
        self._ended.clear()
        self._start_interpreter()


def _listen(ready: selectors.DefaultSelector, seconds: float) -> bool:
    """Take in what was written; who has closed their end is not asked again. Whether there is another order: whoever
    gives one during a call, or hangs up, does not want to wait for the call."""
    for key, _ in ready.select(seconds):
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
    """What still lies in the pipes, now that nobody writes any more."""
    for pipe, output in ((process.stdout, out), (process.stderr, err)):
        while pipe is not None and (piece := _read(pipe.fileno())):
            output.add(piece)


def _answer(out: Output, err: Output, *, stopped: "str | None", **more: Any) -> "dict[str, Any]":
    return {"stdout": out.text(), "stderr": err.text(), "stopped": stopped, **more}


def _others(spared: int) -> "list[int]":
    """Everything that lives, but for us and one more. The dead whom their parent has not buried harm nobody."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [number for number in numbers if number not in (1, spared) and _lives(number)]


def _lives(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _signal(number: int, what: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, what)


def _resident(number: int) -> int:
    """The bytes that a process holds, and those that it shares with others: somebody has to answer for them."""
    try:
        with open(f"/proc/{number}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


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


def _is_whole(report: bytearray) -> bool:
    """Whether there is all of a report, or more than a report may be."""
    if len(report) < _LENGTH.size or len(report) > MAX_REPORT:
        return len(report) > MAX_REPORT
    (length,) = _LENGTH.unpack_from(report)
    return len(report) >= _LENGTH.size + int(length)


def _report(report: bytearray) -> "dict[str, Any] | None":
    """What the interpreter says of a cell, in the shape that it should have; it is the model's process."""
    try:
        found = json.loads(report[_LENGTH.size :])
        images = [name for name in found["images"] if isinstance(name, str)][:64]
        value, error = (found[name] if isinstance(found[name], str) else None for name in ("value", "error"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return {"value": value, "error": error, "images": images}


# -- files -------------------------------------------------------------------------------------------------------------


def listed(most: int = 1000) -> "list[dict[str, Any]]":
    """The plain files below `/mnt/data`, links not followed."""
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
            if stat.S_ISREG(seen.st_mode) and len(found) < most:
                found.append({"path": path, "size": seen.st_size, "changed": seen.st_mtime_ns})
    return found


def _straight(path: str) -> str:
    """A path below `/mnt/data` on which there is no link: it could lead to what belongs to this process."""
    folder = os.path.dirname(path)  # noqa: PTH120
    if os.path.realpath(folder) != folder or not f"{folder}/".startswith(f"{DATA}/"):
        raise OSError(f"{path} is not in a folder of {DATA}")
    return path


def read_file(path: str, offset: int, most: int) -> bytes:
    """A piece of a plain file; an empty one at its end."""
    number = os.open(_straight(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(number, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(f"{path} is no plain file")
        file.seek(offset)
        return file.read(most)


def write_file(path: str, content: bytes) -> None:
    """Make or replace a file, with the folders above it."""
    os.makedirs(os.path.dirname(_straight(path)), exist_ok=True)  # noqa: PTH103, PTH120
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "wb") as file:  # noqa: PTH123
        file.write(content)


# -- the conversation with the service ---------------------------------------------------------------------------------


def _exactly(source: BinaryIO, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = source.read(min(size - len(found), MAX_PIECE))
        if not piece:
            sys.exit(0)
        found += piece
    return bytes(found)


def _obey(agent: Agent, order: "dict[str, Any]", body: bytes) -> "tuple[dict[str, Any], bytes]":
    match order["op"]:
        case "run":
            return agent.run(body.decode(), order["seconds"]), b""
        case "shell":
            return agent.shell(body.decode(), order["seconds"]), b""
        case "list":
            return {"files": listed()}, b""
        case "read":
            return {}, read_file(order["path"], order["offset"], MAX_PIECE)
        case "write":
            write_file(order["path"], body)
        case "remove":
            os.unlink(_straight(order["path"]))  # noqa: PTH108
    return {}, b""


def main() -> None:
    """Obey until the service hangs up. Nobody else inside may have the two ends of this conversation."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    limits = json.loads(sys.argv[1])
    # Without a buffer: an order that lies in one would not be noticed during a call.
    source = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115, PTH123 - open as long as the process lives
    target = open(os.dup(1), "wb")  # noqa: SIM115, PTH123
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    agent = Agent(limits, source)
    while True:
        (length,) = _LENGTH.unpack(_exactly(source, 4))
        order = json.loads(_exactly(source, length))
        body = _exactly(source, order["size"])
        try:
            head, found = _obey(agent, order, body)
        except (OSError, ValueError, RecursionError) as error:
            head, found = {"failed": str(error)}, b""
        written = json.dumps({**head, "size": len(found)}).encode()
        target.write(_LENGTH.pack(len(written)) + written + found)
        target.flush()


if __name__ == "__main__":
    main()
