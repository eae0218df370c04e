"""systemd accepts the units, and they start commands that exist."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from launcher.commands import SUMMARIES
from launcher.errors import WRONG_SETTINGS
from tests.support.draining import longest_stop
from tests.support.programs import need

ROOT = Path(__file__).resolve().parents[2]
BACKUP = ROOT / "deploy" / "systemd" / "responses-platform-backup.service"
TIMER = BACKUP.with_suffix(".timer")
SERVICES = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
# Those of processes that run permanently.
UNITS = [unit for unit in SERVICES if unit != BACKUP]


def test_there_is_a_unit_for_each_process() -> None:
    started = set()
    for unit in UNITS:
        command = re.findall(r"^ExecStart=/usr/bin/python3 manage\.py (.+)$", unit.read_text(), re.MULTILINE)
        assert len(command) == 1, unit.name
        started.add(shlex.split(command[0])[0])
    assert started == {"web", "worker", "beat", "sandbox"}
    assert started <= set(SUMMARIES)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = need("systemd-analyze", package="systemd")
    # An instance of a template is verified, with a program that every machine has.
    copy = tmp_path / unit.name.replace("@.", "@1.")
    copy.write_text(unit.read_text().replace("/usr/bin/python3", "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if unit.stem.rstrip("@") in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_restarts_the_unit_without_a_limit(unit: Path) -> None:
    section = unit.read_text().partition("[Unit]")[2].partition("[Service]")[0]
    assert "StartLimitIntervalSec=0\n" in section
    assert "Restart=always\n" in unit.read_text()
    # Except if its settings are wrong.
    assert f"RestartPreventExitStatus={WRONG_SETTINGS}\n" in unit.read_text()


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_the_unit_is_hardened(unit: Path) -> None:
    text = unit.read_text()
    for option in ("NoNewPrivileges=yes", "CapabilityBoundingSet=\n", "ProtectSystem=strict", "ProtectHome=yes"):
        assert option in text, option
    # The sandbox has another user and none of the platform's secrets.
    is_sandbox = "sandbox" in unit.name
    assert ("User=responses-sandbox" in text) == is_sandbox
    assert ("/etc/responses-platform/environment" in text) != is_sandbox


def test_the_units_permit_the_needs_of_their_processes() -> None:
    units = {unit.name: unit.read_text() for unit in UNITS}
    # systemd 257 filters sethostname(), with which bubblewrap names its containers.
    assert "ProtectHostname=yes" not in units["responses-platform-sandbox.service"]
    # Several workers on a machine, and all of them in the example of Prometheus.
    targets = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    assert "--metrics-port 947%i" in units["responses-platform-worker@.service"]
    assert "--metrics-port 9466" in units["responses-platform-beat.service"]
    assert "--metrics-port 9464" in units["responses-platform-web.service"]
    assert all(f'"127.0.0.1:{port}"' in targets for port in (9464, 9466, 9471, 9472, 9093))


@pytest.mark.parametrize(("name", "unit"), [("web", "web"), ("worker", "worker@")])
def test_processes_are_not_killed_while_they_drain(name: str, unit: str) -> None:
    text = (ROOT / "deploy" / "systemd" / f"responses-platform-{unit}.service").read_text()
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0]) >= longest_stop(name)
    # SIGTERM goes to the main process only: it stops the others of `--processes`.
    assert "KillMode=mixed" in text


def test_systemd_accepts_the_timer_and_starts_the_backup_every_night(tmp_path: Path) -> None:
    analyze = need("systemd-analyze", package="systemd")
    for file in (BACKUP, TIMER):
        (tmp_path / file.name).write_text(file.read_text().replace("/usr/bin/python3", "/bin/true"))
    command = [analyze, "verify", "--man=no", str(tmp_path / TIMER.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if TIMER.stem in line]
    assert (done.returncode, complaints) == (0, [])
    (times,) = re.findall(r"^OnCalendar=(.+)$", TIMER.read_text(), re.MULTILINE)
    calendar = [analyze, "calendar", "--iterations=2", "--base-time=2026-11-30 12:00", times]
    shown = subprocess.run(calendar, env={"TZ": "UTC"}, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"(2026-12-\d\d \d\d:\d\d)", shown)[0] == "2026-12-01 02:30"
    assert "2026-12-02 02:30" in shown


def test_the_backup_does_not_get_the_superuser() -> None:
    text = BACKUP.read_text()
    assert "EnvironmentFile=/etc/responses-platform/owner\n" in text
    assert "UnsetEnvironment=DATABASE_ADMIN_URL\n" in text
    assert "ExecStart=/usr/bin/python3 manage.py backup /var/backups/responses-platform --dated --keep 7\n" in text
    assert "ReadWritePaths=/var/backups/responses-platform\n" in text
