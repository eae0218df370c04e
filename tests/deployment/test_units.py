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
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def test_there_is_a_unit_for_each_process() -> None:
    started = set()
    for unit in UNITS:
        command = re.findall(r"^ExecStart=/usr/bin/python3 manage\.py (.+)$", unit.read_text(), re.MULTILINE)
        assert len(command) == 1, unit.name
        started.add(shlex.split(command[0])[0])
    assert started == {"web", "worker", "beat", "sandbox"}
    assert started <= set(SUMMARIES)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
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


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
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
