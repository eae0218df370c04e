"""Code in a container that tries to escape, to keep running or to exceed its limits fails."""

import asyncio
import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox.client import ExecutionResult, OperationFailed
from tests.support.sampling import rest_at_night
from tests.support.sandboxes import Sandbox, asked, family, running_sandbox
from tests.support.waiting import eventually
from tests.support.web import ROOT

pytestmark = pytest.mark.slow

SECRET = "the-token-of-this-test"
_names = itertools.count()

C = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    return "fine" if result >= 0 else os.strerror(ctypes.get_errno())
"""
CONNECT = """
import socket
def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=3)
        return "connected"
    except OSError as error:
        return type(error).__name__
"""
TRY = """
def attempt(what, *arguments, **options):
    try:
        what(*arguments, **options)
        return "done"
    except Exception as error:
        return "refused"
"""
# The code of each attempt, and the value of the cell when it fails as it should.
REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "a public address": (CONNECT + "reach('1.1.1.1', 53)", ("OSError", "TimeoutError")),
    "the machine's loopback": (CONNECT + "reach('127.0.0.1', {port})", ("ConnectionRefusedError",)),
    "the cloud's metadata": (CONNECT + "reach('169.254.169.254', 80)", ("OSError",)),
    "names": (CONNECT + "reach('example.com', 443)", ("gaierror",)),
    "raw sockets": (
        TRY + "import socket\nattempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)",
        ("refused",),
    ),
    "packet sockets": (TRY + "import socket\nattempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)", ("refused",)),
    "netlink": (TRY + "import socket\nattempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)", ("refused",)),
    "sockets of the virtual machine": (TRY + "import socket\nattempt(socket.socket, 40, 1)", ("refused",)),
    "abstract sockets of the machine": (
        TRY + "import socket\ns = socket.socket(socket.AF_UNIX)\nattempt(s.connect, '\\0{abstract}')",
        ("refused",),
    ),
    "the platform's files": ("import os\nos.path.exists('{root}')", ("False",)),
    "the home of root": ("import os\nos.path.exists('/root') or os.path.exists('/home')", ("False",)),
    "the passwords of the machine": ("import os\nos.path.exists('/etc/shadow')", ("False",)),
    "the environment of the first process": (TRY + "attempt(open, '/proc/1/environ')", ("refused",)),
    "the memory of the first process": (TRY + "attempt(open, '/proc/1/mem', 'r+b')", ("refused",)),
    "the files of the first process": (TRY + "import os\nattempt(os.listdir, '/proc/1/fd')", ("refused",)),
    "a secret in its own environment": ("import os\nany('{secret}' in v for v in os.environ.values())", ("False",)),
    "processes of the machine": (
        "import os\nlen([p for p in os.listdir('/proc') if p.isdigit()])",
        ("2",),
    ),
    "signals to the first process": ("import os\nos.kill(1, 9)\nos.path.exists('/proc/1')", ("True",)),
    "signals to processes of the machine": (TRY + "import os\nattempt(os.kill, {pid}, 0)", ("refused",)),
    "writing to the system": (TRY + "attempt(open, '/usr/bin/evil', 'w')", ("refused",)),
    "writing to the root": (TRY + "attempt(open, '/evil', 'w')", ("refused",)),
    "writing over the interpreter": (TRY + "attempt(open, '/opt/inside/interpreter.py', 'w')", ("refused",)),
    "writing to devices' folder": (TRY + "attempt(open, '/dev/evil', 'w')", ("refused",)),
    "a link out of the container": (
        TRY + "import os\nos.symlink('{root}/manage.py', '/mnt/data/link')\nattempt(open, '/mnt/data/link')",
        ("refused",),
    ),
    "a link to the first process": (
        TRY + "import os\nos.symlink('/proc/1/root', '/mnt/data/root')\nattempt(os.listdir, '/mnt/data/root')",
        ("refused",),
    ),
    "ptrace": (C + "call(101, 16, 1, 0, 0)", ("Operation not permitted",)),
    "reading another's memory": (C + "call(310, 1, 0, 0, 0, 0, 0)", ("Operation not permitted",)),
    "mount": (C + "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)", ("Operation not permitted",)),
    "unmount": (C + "call(166, b'/mnt/data', 2)", ("Operation not permitted",)),
    "changing the root": (TRY + "import os\nattempt(os.chroot, '/tmp')", ("refused",)),
    "a new user namespace": (C + "call(272, 0x10000000)", ("Operation not permitted",)),
    "a clone in a new namespace": (C + "call(56, 0x10000000 | 17, 0, 0, 0, 0)", ("Operation not permitted",)),
    "clone3": (C + "call(435, 0, 0)", ("Function not implemented",)),
    "joining a namespace": (C + "call(308, os.open('/proc/self/ns/net', 0), 0)", ("Operation not permitted",)),
    "memory without a process": (C + "call(319, b'x', 0)", ("Operation not permitted",)),
    "memory that stays": (C + "call(29, 0, 2 ** 30, 0o1600)", ("Operation not permitted",)),
    "messages that stay": (C + "call(68, 0, 0o1600)", ("Operation not permitted",)),
    "pages that stay in a pipe": (C + "call(278, 1, 0, 0, 0)", ("Operation not permitted",)),
    "larger buffers of sockets": (
        (
            "import socket\ns = socket.socket(socket.AF_UNIX)\nbefore = s.getsockopt(1, 7), s.getsockopt(1, 8)\n"
            "s.setsockopt(1, 7, 2 ** 22)\ns.setsockopt(1, 8, 2 ** 22)\n"
            "(s.getsockopt(1, 7), s.getsockopt(1, 8)) == before"
        ),
        ("True",),
    ),
    "keys of the kernel": (C + "call(250, 0, -3, 0)", ("Operation not permitted",)),
    "adding a key": (C + "call(248, b'user', b'x', b'y', 1, -3)", ("Operation not permitted",)),
    "programs for the kernel": (C + "call(321, 0, 0, 0)", ("Operation not permitted",)),
    "io_uring": (C + "call(425, 8, 0)", ("Operation not permitted",)),
    "userfaultfd": (C + "call(323, 0)", ("Operation not permitted",)),
    "performance counters": (C + "call(298, 0, 0, -1, -1, 0)", ("Operation not permitted",)),
    "the log of the kernel": (C + "call(103, 3, 0, 0)", ("Operation not permitted",)),
    "calls by their other numbers": (C + "call(0x40000000 + 39)", ("Function not implemented",)),
    "device nodes": (
        TRY + "import os, stat\nattempt(os.mknod, '/mnt/data/sda', stat.S_IFBLK | 0o600, os.makedev(8, 0))",
        ("refused",),
    ),
    "becoming root": (TRY + "import os\nattempt(os.setuid, 0)", ("refused",)),
    "programs that become root": (
        (
            "import os, subprocess\nopen('/mnt/data/x', 'w').write('id -u')\nos.chmod('/mnt/data/x', 0o6755)\n"
            "subprocess.run(['/bin/sh', '/mnt/data/x'], capture_output=True, text=True).stdout"
        ),
        (repr("65534\n"),),
    ),
    "new rights": (
        "[line for line in open('/proc/self/status') if line.startswith(('CapEff', 'NoNewPrivs'))]",
        (repr(["CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"]),),
    ),
    "more memory than it may": (TRY + "attempt(bytearray, 3 * 1024 ** 3)", ("refused",)),
    "higher limits": (
        TRY + "import resource\nattempt(resource.setrlimit, resource.RLIMIT_AS, (2 ** 40, 2 ** 40))",
        ("refused",),
    ),
    "settings of the kernel": (TRY + "attempt(open, '/proc/sys/kernel/core_pattern', 'w')", ("refused",)),
    "the kernel's keyboard": (TRY + "attempt(open, '/proc/sysrq-trigger', 'w')", ("refused",)),
    "groups of processes": (TRY + "import os\nattempt(os.mkdir, '/sys/fs/cgroup/evil')", ("refused",)),
    "the name of the machine": (TRY + "import socket\nattempt(socket.sethostname, 'evil')", ("refused",)),
    "the clock": (TRY + "import time\nattempt(time.clock_settime, time.CLOCK_REALTIME, 0)", ("refused",)),
}
X86_ONLY = {name for name, (code, _) in REFUSED.items() if "call(" in code}


@pytest.fixture(scope="module")
def service() -> Iterator[Sandbox]:
    """A service without spare containers, so that all its processes belong to the test."""
    where = f"{tempfile.gettempdir()}/escapes-{os.getpid()}"
    with running_sandbox(where, SECRET, {"SANDBOX_WARM": "0", "SANDBOX_SECONDS": "60"}) as running:
        yield running


@dataclass(frozen=True, kw_only=True)
class ContainerClient:
    """A container of a single test."""

    name: str
    service: Sandbox

    def run(self, code: str, *, seconds: float = 10) -> ExecutionResult:
        """Run a cell."""
        return asked(self.service.client.run(self.name, code, seconds=seconds))

    def shell(self, command: str, *, seconds: float = 10) -> ExecutionResult:
        """Run a command."""
        return asked(self.service.client.shell(self.name, command, seconds=seconds))

    @property
    def processes(self) -> int:
        """Return the number of processes of the service's containers, including bubblewrap's."""
        return len(family(self.service.process.pid))


@pytest.fixture
def container(service: Sandbox) -> Iterator[ContainerClient]:
    """A container that is removed after the test; asserts that none of its processes is left."""
    name = f"cntr_{next(_names)}"
    asked(service.client.create(name, memory="1g", idle=600))
    yield ContainerClient(name=name, service=service)
    asked(service.client.delete(name))
    eventually(lambda: not family(service.process.pid))


@pytest.mark.parametrize("what", REFUSED)
def test_code_cannot_reach_the_host(what: str, container: ContainerClient) -> None:
    if what in X86_ONLY and os.uname().machine != "x86_64":
        pytest.skip("the numbers of these calls are those of x86_64")
    code, values = REFUSED[what]
    known = {"root": ROOT, "pid": os.getpid(), "secret": SECRET, "port": 22, "abstract": "/tmp/.X11-unix/X0"}
    for name, value in known.items():
        code = code.replace(f"{{{name}}}", str(value))
    ran = container.run(code)
    assert ran.error is None
    assert (ran.value or "").strip("'") in values or ran.value in values


def test_a_fork_bomb_ends_with_its_call(container: ContainerClient) -> None:
    before = container.processes
    ran = container.run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", seconds=1)
    assert ran.stopped == "it took longer than 1 seconds"
    eventually(lambda: container.processes == before)
    assert container.run("1 + 1").value == "2"


def test_a_fork_bomb_of_a_shell_ends_with_its_call(container: ContainerClient) -> None:
    before = container.processes
    container.shell("f() { f | f & }; f; sleep 5", seconds=1)
    eventually(lambda: container.processes == before)
    assert container.run("1 + 1").value == "2"


def test_the_number_of_processes_is_limited(container: ContainerClient) -> None:
    ran = container.run(
        "import os, time\nmade = 0\ntry:\n"
        "    while True:\n        if os.fork() == 0: time.sleep(60)\n        made += 1\nexcept OSError: pass\nmade < 64"
    )
    assert ran.value == "True"


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(['sleep', '1000'])",
        "subprocess.Popen(['setsid', 'sleep', '1000'], start_new_session=True)",
        'subprocess.Popen(\'nohup sh -c "trap \\"\\" TERM HUP INT; sleep 1000" &\', shell=True)',
    ],
)
def test_no_process_survives_its_call(start: str, container: ContainerClient) -> None:
    before = container.processes
    assert container.run(f"import subprocess\np = {start}").error is None
    eventually(lambda: container.processes == before)


def test_no_process_survives_its_command(container: ContainerClient) -> None:
    before = container.processes
    assert container.shell("(setsid sleep 1000 &) ; sleep 1000 & echo done").stdout == "done\n"
    eventually(lambda: container.processes == before)


def test_threads_do_not_run_between_calls(container: ContainerClient) -> None:
    container.run(
        "import threading, time\nbeats = []\n"
        "def beat():\n    while True: beats.append(1); time.sleep(0.001)\n"
        "threading.Thread(target=beat, daemon=True).start()"
    )
    first = int(container.run("len(beats)").value or 0)
    asked(asyncio.sleep(0.5))
    assert int(container.run("len(beats)").value or 0) - first < 100


def test_the_memory_of_all_processes_is_limited_together(container: ContainerClient) -> None:
    ran = container.run(
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        held = bytearray(300 * 1024 ** 2)\n"
        "        time.sleep(60)\ntime.sleep(60)"
    )
    assert ran.stopped == "it used more memory than allowed"
    assert container.run("1 + 1").value == "2"


def test_shared_memory_counts_towards_the_limit(container: ContainerClient) -> None:
    ran = container.run(
        "import mmap, os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        held = mmap.mmap(-1, 300 * 1024 ** 2)\n        held.write(bytes(len(held)))\n"
        "        time.sleep(60)\ntime.sleep(60)",
        seconds=30,
    )
    assert ran.stopped == "it used more memory than allowed"


IN_EACH_PROCESS = """
import ctypes, fcntl, mmap, os, socket, sys, time
kept = []
def fill(pair):
    kept.append(pair)
    pair[0].setblocking(False)
    try:
        while True: pair[0].send(bytes(60_000))
    except BlockingIOError: pass
for _ in range({processes}):
    if os.fork() == 0:
        try:
{code}
        except OSError: pass
        time.sleep(60)
time.sleep(60)
"""
# Kernel memory that belongs to no process: code that allocates it, and the number of processes that run it.
KERNEL_MEMORY = {
    "stream sockets": ("            while True: fill(socket.socketpair())", 55),
    "datagram sockets": ("            while True: fill(socket.socketpair(type=socket.SOCK_DGRAM))", 55),
    "UDP sockets": (
        (
            "            while True:\n                a, b = socket.socket(type=2), socket.socket(type=2)\n"
            "                b.bind(('127.0.0.1', 0))\n                a.connect(b.getsockname())\n"
            "                kept.append((a, b))\n                for _ in range(20): a.send(bytes(60_000))"
        ),
        55,
    ),
    "TCP sockets": (
        (
            "            listener = socket.create_server(('127.0.0.1', 0))\n"
            "            while True:\n                a = socket.create_connection(listener.getsockname())\n"
            "                fill((a, listener.accept()[0]))"
        ),
        20,
    ),
    "page tables": (
        (
            "            libc = ctypes.CDLL(None)\n            libc.mmap.restype = ctypes.c_size_t\n"
            "            libc.mmap.argtypes = [ctypes.c_size_t] * 2 + [ctypes.c_int] * 3 + [ctypes.c_long]\n"
            "            for n in range(60_000):\n"
            "                at = libc.mmap((n + 512) << 30, 4096, 1, 0x22, -1, 0)\n"
            "                ctypes.string_at(at, 1)"
        ),
        4,
    ),
}


@pytest.mark.parametrize("kind", rest_at_night(KERNEL_MEMORY, first=2))
def test_kernel_memory_counts_towards_the_limit(kind: str, container: ContainerClient) -> None:
    code, processes = KERNEL_MEMORY[kind]
    ran = container.run(IN_EACH_PROCESS.replace("{code}", code).replace("{processes}", str(processes)), seconds=40)
    assert (ran.error, ran.stopped) == (None, "it used more memory than allowed")
    assert container.run("1 + 1").value == "2"


def test_the_number_of_file_locks_is_limited(container: ContainerClient) -> None:
    code = (
        "            for n in range(240):\n"
        "                number = os.open(f'/tmp/{os.getpid()}-{n}', os.O_RDWR | os.O_CREAT)\n"
        "                for at in range(0, 1000, 2): fcntl.lockf(number, fcntl.LOCK_EX, 1, at)"
    )
    ran = container.run(IN_EACH_PROCESS.replace("{code}", code).replace("{processes}", "2"), seconds=40)
    assert (ran.error, ran.stopped) == (None, "it held more than 20000 file locks")
    assert container.run("1 + 1").value == "2"


MULTIPROCESSING = """
import asyncio, multiprocessing, subprocess
from concurrent.futures import ProcessPoolExecutor
def main():
    context = multiprocessing.get_context("fork")
    queue, lock = context.Queue(), context.Lock()
    child = context.Process(target=lambda: queue.put(bytes(5_000_000)))
    child.start()
    with lock: got = len(queue.get())
    child.join()
    with ProcessPoolExecutor(4, mp_context=context) as pool: powers = list(pool.map(pow, range(100), [2] * 100))
    return got, sum(powers), subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout
async def serve():
    async def echo(reader, writer):
        writer.write(await reader.readexactly(100_000))
        await writer.drain()
        writer.close()
    async def ask(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(100_000))
        answer = await reader.read(-1)
        writer.close()
        return len(answer)
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    return sum(await asyncio.gather(*(ask(server.sockets[0].getsockname()[1]) for _ in range(100))))
(main(), asyncio.run(serve()))
"""


def test_programs_may_use_sockets_pipes_and_many_processes(container: ContainerClient) -> None:
    ran = container.run(MULTIPROCESSING, seconds=30)
    assert (ran.error, ran.stopped) == (None, None)
    assert ran.value == repr(((5_000_000, 328_350, "hello\n"), 10_000_000))


@pytest.mark.parametrize("folder", ["/mnt/data", "/tmp", "/dev/shm"])
def test_the_disk_of_a_container_is_limited(folder: str, container: ContainerClient) -> None:
    ran = container.run(
        f"n = 0\ntry:\n    with open('{folder}/a', 'wb') as f, open('{folder}/b', 'wb') as g:\n"
        "        while True: n += f.write(bytes(2 ** 20)); n += g.write(bytes(2 ** 20))\n"
        "except OSError: pass\nn <= 640 * 2 ** 20"
    )
    assert ran.value == "True"


@pytest.mark.parametrize("folder", ["/mnt/data", "/tmp", "/dev/shm"])
def test_files_beyond_the_limit_are_removed_and_earlier_ones_stay(folder: str, container: ContainerClient) -> None:
    container.shell(f"mkdir {folder}/mine && echo kept > {folder}/mine/result.txt && touch -d 2020-01-01 {folder}/mine")
    ran = container.run(f"for n in range(10 ** 7): open(f'{folder}/{{n}}', 'w').close()")
    assert ran.stopped == "it created too many files: at most 20000 are allowed, so the newest were removed"
    kept = container.shell(
        f"cat {folder}/mine/result.txt; find {folder} | wc -l; rm -f {folder}/*; echo more > {folder}/a"
    )
    assert kept.stdout.split()[0] == "kept"
    assert 19_000 < int(kept.stdout.split()[1]) <= 20_000
    assert (kept.exit_code, kept.stopped) == (0, None)
    assert container.shell(f"cat {folder}/a").stdout == "more\n"


def test_a_quick_command_cannot_exceed_the_limit_of_files(container: ContainerClient) -> None:
    container.shell("i=0; while [ $i -lt 19995 ]; do : > $i; i=$((i+1)); done", seconds=30)
    ran = container.shell("mkdir -p a/b/c/d/e/f/g/h/i/j")
    assert "too many files" in (ran.stopped or "")
    assert container.shell("ls | wc -l; ls 0").stdout.split()[1] == "0"


def test_a_file_that_would_exceed_the_limit_is_rejected(container: ContainerClient) -> None:
    container.shell("i=0; while [ $i -lt 20000 ]; do : > $i; i=$((i+1)); done", seconds=30)
    client = container.service.client
    with pytest.raises(OperationFailed, match="20000 files already"):
        asked(client.write(container.name, "/mnt/data/new.txt", b"new"))
    container.shell("rm 7 8")
    asked(client.write(container.name, "/mnt/data/new.txt", b"new"))
    assert container.shell("cat new.txt").stdout == "new"


def test_a_flood_of_output_is_cut(container: ContainerClient) -> None:
    ran = container.run("for _ in range(200): print('x' * 1_000_000)")
    assert len(ran.stdout) < 300_000
    assert "more bytes were cut" in ran.stdout


def test_endless_output_ends_with_the_time_limit(container: ContainerClient) -> None:
    ran = container.shell("yes", seconds=1)
    assert ran.stopped == "it took longer than 1 seconds"
    assert len(ran.stdout) < 300_000


def test_an_endless_loop_ends_with_the_time_limit(container: ContainerClient) -> None:
    assert container.run("while True: pass", seconds=1).stopped == "it took longer than 1 seconds"
    assert container.run("1 + 1").value == "2"


def test_a_forged_report_is_ignored(container: ContainerClient) -> None:
    ran = container.run(
        "import os, struct\nfor n in range(3, 20):\n    try: os.write(n, struct.pack('>I', 5) + b'hello')\n"
        "    except OSError: pass"
    )
    assert (ran.stopped, ran.value) == ("the interpreter has ended", None)
    assert container.run("1 + 1").value == "2"


def test_an_interpreter_that_exits_is_replaced(container: ContainerClient) -> None:
    assert container.run("import os\nos.kill(os.getpid(), 9)").stopped == "the interpreter has ended"
    assert container.run("1 + 1").value == "2"


def test_special_files_are_not_read(container: ContainerClient) -> None:
    container.run("import os\nos.mkfifo('/mnt/data/pipe')\nos.symlink('/proc/self/environ', '/mnt/data/link')")
    assert asked(container.service.client.files(container.name)) == []


def test_a_folder_that_became_a_link_is_not_followed(container: ContainerClient) -> None:
    """Files are read by the first process in the container, which may access its own /proc."""
    container.run("import os\nos.mkdir('/mnt/data/a')\nopen('/mnt/data/a/maps', 'w').close()")
    assert [file.path for file in asked(container.service.client.files(container.name))] == ["/mnt/data/a/maps"]
    container.run("import shutil\nshutil.rmtree('/mnt/data/a')\nos.symlink('/proc/1', '/mnt/data/a')")
    with pytest.raises(OperationFailed):
        asked(container.service.client.read(container.name, "/mnt/data/a/maps"))
    with pytest.raises(OperationFailed):
        asked(container.service.client.read(container.name, "/proc/1/maps"))


def test_containers_do_not_see_each_other(container: ContainerClient, service: Sandbox) -> None:
    asked(service.client.create("cntr_neighbour", memory="1g", idle=600))
    asked(service.client.write("cntr_neighbour", "/mnt/data/secret", b"secret"))
    pid = max(family(service.process.pid))
    found = container.run(f"import os\n(os.listdir('/mnt/data'), os.path.exists('/proc/{pid}'))").value
    asked(service.client.delete("cntr_neighbour"))
    assert found == "([], False)"
