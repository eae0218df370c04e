"""A separate Debian on this machine: systemd runs as the first process in an empty root, with a shell to type commands.

It has its own processes, mounts and host name. It shares the kernel and the network with this machine, because packages
come from there: the ports that its servers use must be free. Needs root, mmdebstrap and unshare.
"""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from launcher.errors import LaunchError

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MIRROR = "http://deb.debian.org/debian"
# Units that would change the kernel or the terminals of this machine.
_MASKED = ("systemd-sysctl.service", "systemd-modules-load.service", "console-getty.service", "getty@tty1.service")
_FILES = ("resolv.conf", "hosts")
# The only variables that the Debian gets from this environment. They describe how to reach package indexes.
_PASSED = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_BOOT = """
set -e
mount --rbind "$ROOT" "$ROOT"
cd "$ROOT"
mount -t proc proc proc
mount --bind -o ro proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=0755 tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
hostname "$NAME"
pivot_root . .
umount -l .
exec env --ignore-environment container=other PATH="$PATH" /lib/systemd/systemd
"""


class Failed(Exception):
    """A command in the machine failed; the message contains it and its output."""


class Shell:
    """A root shell on a terminal in the machine. Variables and the current directory are kept between texts."""

    def __init__(self, pid: int, *, environment: Mapping[str, str]) -> None:
        self._terminal, other = pty.openpty()
        variables = {
            "HOME": "/root",
            "USER": "root",
            "TERM": "dumb",
            "PATH": _PATH,
            "PS1": "",
            "PS2": "",
            **environment,
        }
        inside = ["env", "--ignore-environment", *(f"{name}={value}" for name, value in variables.items())]
        spaces = [f"--target={pid}", "--mount", "--pid", "--ipc", "--uts", "--root", "--wdns=/root"]
        self._process = subprocess.Popen(
            ["nsenter", *spaces, *inside, "bash", "--norc", "--noprofile", "-i"],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self._number = 0
        self._write("stty -echo -onlcr; bind 'set enable-bracketed-paste off'; PS1=; PS2=; PROMPT_COMMAND=\n")
        self.type("true")

    def type(self, text: str, *, answers: Mapping[str, str] | None = None, seconds: float = 600) -> str:
        """Execute lines as if they were typed and return their output. `answers` are given to prompts with that text.

        Raises `Failed` at the end if a line failed.
        """
        self._number += 1
        script, mark = f"/run/typed-{self._number}", f"==typed-{self._number}=="
        self._write(f"cat > {script} <<'{mark}'\n{text}\n{mark}\n")
        self._write(
            f"failed=; trap 'failed=\"$failed$LINENO: $BASH_COMMAND; \"' ERR; . {script}; trap - ERR;"
            f" printf '%s%s\\n' '{mark[:-2]}' \"==[$failed]\"\n"
        )
        output, remaining, end = "", dict(answers or {}), time.monotonic() + seconds
        while True:
            ended = re.search(rf"{re.escape(mark)}\[(.*?)\]\n", output, re.DOTALL)
            if ended is not None:
                break
            if time.monotonic() > end:
                raise Failed(f"{text}\nhas not ended after {seconds:.0f} s:\n{output}")
            try:
                output += os.read(self._terminal, 65536).decode(errors="replace").replace("\r\n", "\n")
            except OSError:
                raise Failed(f"{text}\nended the shell:\n{output}") from None
            for prompt in [one for one in remaining if one in output]:
                self._write(f"{remaining.pop(prompt)}\n")
        output = output[: ended.start()]
        if ended[1]:
            raise Failed(f"{text}\nfailed in line {ended[1]}\n{output}")
        return output

    def close(self) -> None:
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _write(self, text: str) -> None:
        # A terminal takes 4 KiB at once.
        for line in text.splitlines(keepends=True):
            os.write(self._terminal, line.encode())


@contextmanager
def running_machine(*, suite: str, hosts: Mapping[str, str]) -> Iterator["tuple[Path, Shell]"]:
    """Boot an empty Debian and yield its root directory and a shell. Raises LaunchError if that is impossible here."""
    if os.geteuid() != 0 or not (bootstrap := shutil.which("mmdebstrap")):
        raise LaunchError("An empty Debian needs root and the package mmdebstrap.")
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="machine-", dir=memory if memory.is_dir() else None))
    root = directory / "root"
    # The machine must end with this process, even if the process receives SIGTERM.
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    boot: subprocess.Popen[bytes] | None = None
    try:
        options = ["--quiet", "--variant=minbase", "--format=directory", "--dpkgopt=force-unsafe-io"]
        made = subprocess.run(
            [bootstrap, *options, "--include=init,dbus", "--aptopt=Acquire::Languages none", suite, root, _MIRROR],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise LaunchError(f"mmdebstrap failed: {made.stderr}")
        for name in _FILES:
            shutil.copy(f"/etc/{name}", root / "etc" / name)
        with (root / "etc/hosts").open("a") as file:
            file.writelines(f"{address} {name}\n" for name, address in hosts.items())
        for unit in _MASKED:
            (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
        (root / "usr/local/share/ca-certificates").mkdir(parents=True, exist_ok=True)
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/machine-certificates.pem")
        spaces = ["--mount", "--propagation=private", "--pid", "--fork", "--ipc", "--uts", "--cgroup", "--kill-child"]
        boot = subprocess.Popen(
            ["unshare", *spaces, "/bin/sh", "-c", _BOOT],
            env={"ROOT": str(root), "NAME": f"machine-{os.getpid()}", "PATH": _PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        environment = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        # Package indexes of this machine may have certificates that only it knows.
        environment |= {"PIP_CERT": "/etc/machine-certificates.pem", "SSL_CERT_FILE": "/etc/machine-certificates.pem"}
        environment["DEBIAN_FRONTEND"] = "noninteractive"
        shell = Shell(_first_process(boot), environment=environment)
        try:
            shell.type("until systemctl is-system-running | grep -E 'running|degraded'; do sleep 0.2; done", seconds=60)
            yield root, shell
        finally:
            shell.close()
    finally:
        if boot is not None:
            # The first process inside: with it, the kernel ends all others.
            for pid in _children(boot):
                os.kill(pid, signal.SIGKILL)
            boot.wait()
        signal.signal(signal.SIGTERM, previous)
        subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=True)


def _first_process(boot: "subprocess.Popen[bytes]") -> int:
    """Return the process id of systemd outside of the machine, once it has replaced the script that mounts its root."""
    end = time.monotonic() + 30
    while time.monotonic() < end and boot.poll() is None:
        children = _children(boot)
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
            return children[0]
        time.sleep(0.05)
    raise LaunchError("systemd does not start in namespaces of this machine.")


def _children(process: "subprocess.Popen[bytes]") -> list[int]:
    if process.poll() is not None:
        return []
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
