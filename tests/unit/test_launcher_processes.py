"""Child processes: identification by more than their pid, and complete termination."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import postgres, processes
from launcher.processes import ChildCommand, Records, identify, is_same, wait_until
from tests.support.waiting import HANGS_AFTER


def command(tmp_path: Path, script: str, *, stdin: bytes = b"") -> ChildCommand:
    return ChildCommand(
        name="child",
        argv=(sys.executable, "-u", "-c", script),
        log=tmp_path / "child.log",
        directory=tmp_path,
        environment=os.environ,
        stdin=stdin,
    )


def wait_for_log(tmp_path: Path, text: str) -> str:
    log = tmp_path / "child.log"
    assert wait_until(lambda: text in log.read_text(), seconds=90)
    return log.read_text()


SLEEP = "import time; print('up'); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
# Its own child outlives it unless the whole group is ended.
PARENT = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid); {SLEEP}"


def test_a_child_runs_in_its_own_session_without_a_terminal(tmp_path: Path) -> None:
    process = processes.start(command(tmp_path, SLEEP))
    assert os.getsid(process.pid) == process.pid
    assert processes.end(process, asking=signal.SIGTERM, patience=5)


def test_secrets_are_passed_through_stdin(tmp_path: Path) -> None:
    process = processes.start(command(tmp_path, "import sys; print(sys.stdin.read()[::-1])", stdin=b"secret"))
    assert process.wait(timeout=HANGS_AFTER) == 0
    assert (tmp_path / "child.log").read_text().strip() == "terces"


@pytest.mark.slow
def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = processes.start(command(tmp_path, STUBBORN))
    wait_for_log(tmp_path, "up")
    assert not processes.end(process, asking=signal.SIGTERM, patience=0.2)
    assert process.returncode == -signal.SIGKILL


def test_descendants_of_a_child_end_with_it(tmp_path: Path) -> None:
    process = processes.start(command(tmp_path, PARENT))
    grandchild = int(wait_for_log(tmp_path, "up").split()[0])
    processes.end(process, asking=signal.SIGTERM, patience=5)
    assert wait_until(lambda: identify(grandchild) is None, seconds=90)


def test_a_stranger_with_the_number_of_an_ended_child_is_left_alone(tmp_path: Path) -> None:
    stranger = processes.start(command(tmp_path, SLEEP))
    processes.end(EndedProcess(stranger.pid), asking=signal.SIGTERM, patience=5)
    assert stranger.poll() is None
    assert processes.end(stranger, asking=signal.SIGTERM, patience=5)
    assert stranger.returncode == -signal.SIGTERM


class EndedProcess:
    """A child that ended so long ago that another process has its number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def send_signal(self, sig: int) -> None:
        raise AssertionError("no signal is sent to a process that has ended")

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def test_a_zombie_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        assert wait_until(lambda: identify(process.pid) is None, seconds=90)
    finally:
        process.wait()


def test_a_record_of_another_process_with_the_same_pid_does_not_match() -> None:
    us = processes.current()
    assert is_same(us, identify(os.getpid()))
    assert not is_same(replace(us, started="1"), identify(os.getpid()))
    assert not is_same(replace(us, command="/usr/bin/valkey-server -"), identify(os.getpid()))


def test_the_next_start_ends_children_of_a_killed_supervisor(tmp_path: Path) -> None:
    process = processes.start(command(tmp_path, SLEEP))
    Records(tmp_path / "pids").add(command=command(tmp_path, SLEEP), process=process)
    records = Records(tmp_path / "pids")
    assert records.end_leftovers(patience=5) == ["child"]
    assert process.wait(timeout=HANGS_AFTER) == -signal.SIGTERM
    assert records.end_leftovers() == []


def test_a_record_with_a_reused_pid_ends_no_process(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL)
    records = Records(tmp_path / "pids")
    path = tmp_path / "pids" / "child.json"
    path.write_text(json.dumps({"stop_signal": 15, "pid": stranger.pid, "started": "1", "command": sys.executable}))
    assert records.end_leftovers() == []
    assert stranger.poll() is None
    assert not path.exists()
    stranger.kill()
    stranger.wait()


def test_a_truncated_record_is_ignored(tmp_path: Path) -> None:
    records = Records(tmp_path / "pids")
    (tmp_path / "pids" / "child.json").write_text('{"pid": 1')
    assert records.end_leftovers() == []


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels send no death signal; records serve there")
def test_a_child_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(processes.__file__).parents[1])!r})
from pathlib import Path
from launcher.processes import ChildCommand, start
child = ChildCommand(name="child", argv=(sys.executable, "-c", {SLEEP!r}), log=Path("child.log"), directory=Path("."),
                environment=os.environ)
print(start(child).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    supervisor = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=False)
    assert wait_until(lambda: identify(int(supervisor.stdout)) is None, seconds=90)


def pid_file(data: Path, pid: str) -> Path:
    path = data / "postmaster.pid"
    path.write_text(f"{pid}\n{data}\n")
    return path


@pytest.mark.parametrize("pid", ["", "0", "4194304", "1"])
def test_a_stale_pid_file_of_the_database_is_removed(tmp_path: Path, pid: str) -> None:
    path = pid_file(tmp_path, pid)
    postgres.clear_stale(data=tmp_path)
    assert not path.exists()


def test_a_stale_pid_file_with_a_reused_pid_ends_no_process(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP, "postgres"], stdout=subprocess.DEVNULL)
    path = pid_file(tmp_path, str(stranger.pid))
    postgres.clear_stale(data=tmp_path)
    assert not path.exists()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def _hear() -> None:
    """Shells start background processes with these signals ignored, so this script installs handlers."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def test_a_server_still_using_the_data_is_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", SLEEP, "postgres", "-D", str(tmp_path), "-p", "1"]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_hear)  # noqa: PLW1509 - one thread
    pid_file(tmp_path, str(server.pid))
    postgres.clear_stale(data=tmp_path)
    assert server.wait(timeout=HANGS_AFTER) != 0
