"""Supervisor: restarts with growing pauses, shutdown order, and the display of logs."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import NOT_READY, WRONG_SETTINGS, LaunchError, RefusedStart
from launcher.processes import ChildCommand, Records, wait_until
from launcher.report import Report
from launcher.supervisor import LONGEST_DELAY, QUICK, Interrupts, LogWatch, Restarts, Stage, StatusFile, Supervisor
from tests.support.machine_clock import machine_time


class Quiet(Interrupts):
    """Supervisor without signal handlers, which would replace those of the test process."""

    def __init__(self) -> None:
        self._requests = 0
        self._reader, self._writer = os.pipe()


@pytest.fixture
def shown() -> StringIO:
    return StringIO()


@pytest.fixture
def supervisor(tmp_path: Path, shown: StringIO) -> Iterator[Supervisor]:
    made = Supervisor(
        records=Records(tmp_path / "pids"),
        interrupts=Quiet(),
        report=Report(stream=shown),
        status_file=StatusFile(tmp_path / "processes.json"),
    )
    yield made
    made.stop()


def status_of(tmp_path: Path, name: str) -> dict[str, Any]:
    """Return the entry of a child in the status file."""
    status = json.loads((tmp_path / "processes.json").read_text())
    return next(entry for entry in status["processes"] if entry["name"] == name)


def python(tmp_path: Path, script: str, name: str = "child") -> ChildCommand:
    log = tmp_path / f"{name}.log"
    return ChildCommand(
        name=name, argv=(sys.executable, "-u", "-c", script), log=log, directory=tmp_path, environment=os.environ
    )


def test_the_restart_delay_doubles_after_each_quick_exit_up_to_a_limit() -> None:
    restarts = Restarts()
    delays = [restarts.delay_after("exit code 1", lived=0.1) for _ in range(8)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_restart_delay_has_its_limit_after_any_number_of_quick_exits() -> None:
    restarts = Restarts(quick_deaths=5000)
    assert restarts.delay_after("exit code 1", lived=0.1) == LONGEST_DELAY


def test_a_long_uptime_resets_the_restart_delay() -> None:
    restarts = Restarts(quick_deaths=7)
    assert restarts.delay_after("exit code 1", lived=QUICK + 1) == 0.0
    assert restarts.delay_after("exit code 1", lived=0.1) == 0.5


@pytest.mark.slow
def test_a_child_that_exited_is_restarted(supervisor: Supervisor, shown: StringIO, tmp_path: Path) -> None:
    once = (
        "import pathlib, time; b = pathlib.Path('born'); b.exists() and time.sleep(60); b.touch(); raise SystemExit(3)"
    )
    supervisor.start(python(tmp_path, once), stage=Stage.APPLICATION)
    supervisor.wait_for(lambda: "died (exit code 3)" in shown.getvalue(), name="child")
    supervisor.wait_for(lambda: supervisor.is_running("child"), name="child")


def refusing(tmp_path: Path, *, code: int = WRONG_SETTINGS, name: str = "child") -> ChildCommand:
    script = f"import sys; print('error: SECRET_KEY is too weak.', file=sys.stderr); sys.exit({code})"
    return python(tmp_path, script, name=name)


@pytest.mark.parametrize("code", [WRONG_SETTINGS, NOT_READY])
@pytest.mark.parametrize("waited_for", ["child", "web"])
def test_a_child_that_refuses_to_start_ends_the_start_at_once(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path, code: int, waited_for: str
) -> None:
    supervisor.start(python(tmp_path, "import time; time.sleep(600)", name="web"), stage=Stage.APPLICATION)
    supervisor.start(refusing(tmp_path, code=code), stage=Stage.APPLICATION)
    with pytest.raises(RefusedStart, match=r"^child refuses to start: SECRET_KEY is too weak\.$") as raised:
        supervisor.wait_for(lambda: False, name=waited_for)
    assert (raised.value.exit_code, status_of(tmp_path, "child")["restarts"]) == (code, 0)
    assert "restarting" not in shown.getvalue()


def test_a_step_beside_a_child_that_refuses_to_start_ends_at_once(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(refusing(tmp_path, name="web"), stage=Stage.APPLICATION)
    with pytest.raises(RefusedStart, match=r"^web refuses to start: SECRET_KEY is too weak\.$"):
        supervisor.run_once(python(tmp_path, "import time; time.sleep(600)", name="prepare"))


def test_a_step_that_refuses_to_start_shows_only_its_reason(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path
) -> None:
    with pytest.raises(RefusedStart, match=r"^prepare refuses to start: SECRET_KEY is too weak\.$"):
        supervisor.run_once(refusing(tmp_path, name="prepare"))
    assert shown.getvalue() == ""


@pytest.mark.slow
def test_a_child_that_refuses_to_start_later_is_restarted_with_its_reason(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path
) -> None:
    supervisor.start(refusing(tmp_path, code=NOT_READY, name="worker"), stage=Stage.APPLICATION)

    def is_restarted() -> bool:
        supervisor.check_children()
        return bool(status_of(tmp_path, "worker")["restarts"] >= 2)

    assert wait_until(is_restarted, seconds=60)
    how = "exit code 75, worker refuses to start: SECRET_KEY is too weak."
    assert f"worker died ({how}), restarting in 0.5 s" in shown.getvalue()
    assert status_of(tmp_path, "worker")["last_end"] == how


@pytest.mark.slow
def test_a_child_that_keeps_exiting_at_the_start_stops_it_with_its_log(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path
) -> None:
    supervisor.start(python(tmp_path, "print('no such port'); raise SystemExit(2)"), stage=Stage.APPLICATION)
    with pytest.raises(LaunchError, match=r"^child died 4 times in a row \(exit code 2\)\. See its log: "):
        supervisor.wait_for(lambda: False, name="child")
    assert "child | no such port" in shown.getvalue()


@pytest.mark.slow
def test_a_child_that_keeps_exiting_leaves_the_others_running(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path
) -> None:
    supervisor.start(python(tmp_path, "import time; time.sleep(600)", name="web"), stage=Stage.APPLICATION)
    supervisor.start(python(tmp_path, "raise SystemExit(2)", name="worker"), stage=Stage.APPLICATION)
    supervisor.wait_for(lambda: shown.getvalue().count("worker died (exit code 2)") == 5, name="web")
    assert supervisor.is_running("web")
    worker = status_of(tmp_path, "worker")
    assert (worker["restarts"], worker["last_end"]) == (4, "exit code 2")
    assert 0 < worker["next_start_at"] - time.time() <= 8
    web = status_of(tmp_path, "web")
    assert (web["restarts"], web["last_end"], web["next_start_at"]) == (0, None, None)


@pytest.mark.slow
def test_a_child_that_cannot_be_started_again_leaves_the_others_running(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    supervisor.start(python(tmp_path, "import time; time.sleep(600)", name="web"), stage=Stage.APPLICATION)
    command = replace(python(tmp_path, "import time; time.sleep(0.5)", name="worker"), directory=folder)
    supervisor.start(command, stage=Stage.APPLICATION)
    folder.rmdir()
    supervisor.wait_for(lambda: "worker died (cannot be started: " in shown.getvalue(), name="web")
    folder.mkdir()
    supervisor.wait_for(lambda: supervisor.is_running("worker"), name="web")


def test_a_state_that_cannot_be_stored_is_reported_once(
    supervisor: Supervisor, shown: StringIO, tmp_path: Path
) -> None:
    (tmp_path / "processes.json").mkdir()
    supervisor.start(python(tmp_path, "import time; time.sleep(600)", name="web"), stage=Stage.APPLICATION)
    supervisor.start(python(tmp_path, "raise SystemExit(2)", name="worker"), stage=Stage.APPLICATION)
    supervisor.wait_for(lambda: "worker died" in shown.getvalue(), name="web")
    assert shown.getvalue().count("the state of the processes cannot be stored") == 1
    (tmp_path / "processes.json").rmdir()


def test_the_state_of_the_processes_ends_with_them(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(python(tmp_path, "import time; time.sleep(600)"), stage=Stage.APPLICATION)
    assert status_of(tmp_path, "child")["restarts"] == 0
    supervisor.stop()
    assert not (tmp_path / "processes.json").exists()


def test_a_failed_step_stops_the_start_with_its_log(supervisor: Supervisor, shown: StringIO, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"^`migrate` failed: exit code 1\. See its log: "):
        supervisor.run_once(python(tmp_path, "raise SystemExit('no database')", name="migrate"))
    assert "migrate | no database" in shown.getvalue()


@pytest.mark.slow
def test_processes_that_use_the_servers_end_before_the_servers(supervisor: Supervisor, tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "def end(*_):\n    open('order', 'a').write('{}'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up'); time.sleep(60)"
    )
    supervisor.start(python(tmp_path, script.format("server "), name="server"), stage=Stage.SERVERS)
    supervisor.start(python(tmp_path, script.format("web "), name="web"), stage=Stage.APPLICATION)
    logs_of = [tmp_path / "server.log", tmp_path / "web.log"]
    assert wait_until(lambda: all("up" in log.read_text() for log in logs_of), seconds=90)
    supervisor.stop()
    assert (tmp_path / "order").read_text() == "web server "


@pytest.mark.nightly
@pytest.mark.slow
def test_children_that_ignore_sigterm_delay_the_shutdown_by_at_most_ten_seconds(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    supervisor.start(python(tmp_path, stubborn, name="server"), stage=Stage.SERVERS)
    supervisor.start(python(tmp_path, stubborn, name="worker"), stage=Stage.APPLICATION)
    logs_of = [tmp_path / "server.log", tmp_path / "worker.log"]
    assert wait_until(lambda: all("up" in log.read_text() for log in logs_of), seconds=90)
    started = machine_time()
    supervisor.stop()
    assert machine_time() - started < 10
    assert not list((tmp_path / "pids").iterdir())


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("2026-11-21 10:00:00,123 ERROR django.request Internal Server Error: /v1/responses", True),
        ('{"event": "run failed", "level": "error"}', True),
        ("2026-11-21 10:00:00 UTC [7] platform_app FATAL:  sorry, too many clients already", True),
        ("2026-11-21 10:00:00 UTC [7] platform_app ERROR:  duplicate key value violates unique constraint", False),
        ("2026-11-21 10:00:00 UTC [7] FATAL:  the database system is starting up", False),
        ("2026-11-21 10:00:00,123 INFO celery.worker no errors", False),
    ],
)
def test_warnings_and_errors_in_a_log_are_shown(tmp_path: Path, line: str, is_shown: bool) -> None:
    log = tmp_path / "child.log"
    log.write_text("ERROR of an earlier run\n")
    watch = LogWatch(log)
    with log.open("a") as file:
        file.write(f"{line}\n")
    assert list(watch.serious_lines()) == ([line] if is_shown else [])


def test_only_the_error_of_a_traceback_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    watch = LogWatch(log)
    log.write_text(
        '2026 ERROR failed\nTraceback (most recent call last):\n  File "x.py", line 1\n\nValueError: no\nnext\n'
    )
    assert list(watch.serious_lines()) == ["2026 ERROR failed", "ValueError: no"]


def test_a_line_is_shown_once_and_only_when_complete(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    watch = LogWatch(log)
    with log.open("a") as file:
        file.write("2026 ERROR first\n2026 ERR")
        file.flush()
        assert list(watch.serious_lines()) == ["2026 ERROR first"]
        file.write("OR second\n")
        file.flush()
        assert list(watch.serious_lines()) == ["2026 ERROR second"]


def test_a_large_log_is_rotated_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    with log.open("a") as file:
        watch = LogWatch(log)
        file.write("a line that is too long\n")
        file.flush()
        watch.rotate(max_bytes=10)
        file.write("2026 ERROR next\n")
        file.flush()
    assert list(watch.serious_lines()) == ["2026 ERROR next"]
    assert (tmp_path / "child.log.1").read_text() == "a line that is too long\n"
