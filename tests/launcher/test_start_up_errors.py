"""Start-up errors, each caused for real and reported in one accurate sentence with a remedy."""

import fcntl
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pytest

from launcher import address, bootstrap
from tests.launcher.checkout import BARE_PYTHON, ROOT, Checkout, PackageIndex, requirement
from tests.support.programs import skip
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


def error_of(done: subprocess.CompletedProcess[str], *, code: int = 1) -> str:
    """Return the error, which is one line and the only thing on stderr."""
    assert done.returncode == code, done
    assert done.stderr.startswith("error: "), done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MB, which needs root, and return its directory."""
    directory = tmp_path / "disk"
    directory.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], check=False).returncode:
        skip("only root can mount a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture
def ordinary_user(tmp_path: Path, checkout: Checkout) -> dict[str, object]:
    """Return options for a process of an ordinary user that may read the checkout."""
    if not IS_ROOT:
        return {}
    options: dict[str, object] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    for python in (BARE_PYTHON, "/usr/bin/python3"):
        asked = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        with suppress(OSError):
            if subprocess.run(asked, check=False, capture_output=True, **options).returncode == 0:  # type: ignore[call-overload]
                break
    else:
        pytest.skip("other users cannot run a Python of this machine that is new enough")
    # The number of directories depends on whether the tests run in parallel.
    for path in takewhile(lambda path: path != Path(tempfile.gettempdir()), (tmp_path, *tmp_path.parents)):
        path.chmod(path.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    return {**options, "python": python}


def test_an_unreachable_index_is_reported(checkout: Checkout, wheel: Path) -> None:
    port = address.any_free_port()
    checkout.variables["PIP_INDEX_URL"] = f"http://127.0.0.1:{port}/simple"
    checkout.require(requirement(wheel))
    message = error_of(checkout.run("install", "--no-input"))
    assert f"The package index at 127.0.0.1:{port} cannot be reached (Connection refused): check the network" in message


def test_an_unreachable_index_without_uv_is_reported(checkout: Checkout, wheel: Path) -> None:
    port = address.any_free_port()
    checkout.variables |= {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple", "PATH": "/usr/bin:/bin"}
    checkout.require(requirement(wheel), development="uv==0.0 --hash=sha256:" + "0" * 64)
    message = error_of(checkout.run("install", "--no-input"))
    assert f"The package index at 127.0.0.1:{port} cannot be reached" in message


def test_a_failed_name_resolution_is_reported(checkout: Checkout, wheel: Path) -> None:
    checkout.variables["PIP_INDEX_URL"] = "http://index.invalid/simple"
    checkout.require(requirement(wheel))
    message = error_of(checkout.run("install", "--no-input"))
    assert "The package index at index.invalid cannot be reached (" in message


@pytest.mark.parametrize(
    ("status", "text"),
    [(403, "refuses access (HTTP status 403): check the credentials"), (503, "fails with HTTP status 503")],
)
def test_an_error_of_the_index_is_reported(
    checkout: Checkout, index: PackageIndex, wheel: Path, status: int, text: str
) -> None:
    index.status = status
    checkout.require(requirement(wheel))
    assert f"127.0.0.1:{index.server_port} {text}" in error_of(checkout.run("install", "--no-input"))


def test_a_package_missing_in_the_index_is_reported(checkout: Checkout, index: PackageIndex, wheel: Path) -> None:
    index.wheels.clear()
    checkout.require(requirement(wheel))
    message = error_of(checkout.run("install", "--no-input"))
    assert message.startswith("error: The package index does not have tinything")


def test_a_file_with_another_hash_is_reported(checkout: Checkout, wheel: Path) -> None:
    checkout.require(requirement(wheel, digest="0" * 64))
    message = error_of(checkout.run("install", "--no-input"))
    assert "delivered another file of tinything==1.0 than the one that is locked" in message
    assert not list(checkout.venv.glob("lib/python3.*/site-packages/tinything*"))


def test_a_full_disk_is_reported(small_disk: Path, index: PackageIndex, wheel: Path, tmp_path: Path) -> None:
    checkout = Checkout.create(root=small_disk, home=tmp_path / "other-home")
    checkout.variables["PIP_INDEX_URL"] = index.url
    checkout.require(requirement(wheel))
    message = error_of(checkout.run("install", "--no-input"))
    assert re.match(rf"error: The disk of {small_disk}\S* is full \(\d MB are free; .*free some space", message)


def test_a_full_cache_disk_is_reported(checkout: Checkout, small_disk: Path, wheel: Path) -> None:
    checkout.variables["UV_CACHE_DIR"] = str(small_disk)
    checkout.require(requirement(wheel))
    assert f"The disk of {small_disk}" in error_of(checkout.run("install", "--no-input"))


def test_a_file_size_limit_is_reported(checkout: Checkout, wheel: Path) -> None:
    checkout.require(requirement(wheel))
    limit = 1_000_000
    done = checkout.run("install", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert "exceeds the file size limit (`ulimit -f`)" in error_of(done)


def test_a_read_only_file_system_is_reported(small_disk: Path, tmp_path: Path) -> None:
    checkout = Checkout.create(root=small_disk, home=tmp_path / "other-home")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    message = error_of(checkout.run("up", "--no-input"))
    assert f"{small_disk}/.venv is on a read-only file system" in message
    assert "copy the checkout to a directory that you can write to" in message


def test_a_checkout_of_another_user_is_reported(checkout: Checkout, ordinary_user: dict[str, object]) -> None:
    checkout.root.chmod(0o555)
    message = error_of(checkout.run("up", "--no-input", **ordinary_user))
    assert f"have no permission to write to {checkout.root}, which belongs to" in message


def test_an_environment_of_another_user_is_reported(checkout: Checkout, ordinary_user: dict[str, object]) -> None:
    # Created with the same Python, because the ordinary user has to be able to run it.
    python = str(ordinary_user.get("python", BARE_PYTHON))
    assert checkout.run("install", "--no-input", python=python).returncode == 0
    checkout.require("# changed\n")
    for directory in (checkout.venv, checkout.venv / "bin"):
        directory.chmod(0o555)
    message = error_of(checkout.run("up", "--no-input", **ordinary_user))
    assert f"have no permission to write to {checkout.venv}, which belongs to" in message


def test_ctrl_c_during_the_installation_is_reported(checkout: Checkout, index: PackageIndex, wheel: Path) -> None:
    checkout.require(requirement(wheel))
    index.released.clear()
    process = checkout.start("up", "--no-input")
    assert index.asked.wait(30)
    # Only the launcher is interrupted. It ends its installer, which a terminal would interrupt as well.
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    assert "The installation was interrupted: run the same command again" in error_of(done, code=130)
    with_lock = os.open(checkout.root, os.O_RDONLY)
    # The lock is free at once, so no installer is left.
    fcntl.flock(with_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(with_lock)

    message = error_of(checkout.run("migrate"))
    assert f"The installation in {checkout.venv} is not complete: run `python3 manage.py install` again." in message
    index.released.set()
    assert checkout.run("install", "--no-input").returncode == 0
    assert list(checkout.venv.glob("lib/python3.*/site-packages/tinything.py"))


def test_an_unknown_failure_is_reported_with_the_last_output_and_the_log(checkout: Checkout, wheel: Path) -> None:
    checkout.require(requirement(wheel) + "this is no requirement\n")
    done = checkout.run("install", "--no-input")
    log = checkout.venv / "installation.log"
    assert f"; {log} has the complete output" in error_of(done)
    assert "this is no requirement" in done.stdout
    assert "this is no requirement" in log.read_text()


def test_a_broken_environment_is_reported(checkout: Checkout) -> None:
    assert checkout.run("install", "--no-input").returncode == 0
    python = checkout.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    message = error_of(checkout.run("create_key", "--team", "research"))
    assert f"The Python of {checkout.venv} does not run (/nowhere/python3)" in message
    assert "`python3 manage.py install`" in message
    assert checkout.run("install", "--no-input").returncode == 0
    assert subprocess.run([python, "--version"], check=False).returncode == 0


def test_a_command_before_the_installation_is_reported(checkout: Checkout) -> None:
    message = error_of(checkout.run("create_key"))
    assert message == "error: The packages are not installed yet: run `python3 manage.py install` first."


def test_an_old_python_is_reported(checkout: Checkout) -> None:
    programs = [*Path("/usr/bin").glob("python[23]*"), *Path("~/.pyenv/versions").expanduser().glob("*/bin/python")]
    old = []
    for program in programs:
        with suppress(OSError):
            asked = [str(program), "-c", "import sys; sys.exit(sys.version_info >= (3, 11))"]
            if re.fullmatch(r"python[\d.]*", program.name) and subprocess.run(asked, check=False).returncode == 0:
                old.append(str(program))
    if not old:
        pytest.skip("this machine has no Python before 3.11")
    for python in old:
        message = error_of(checkout.run("up", python=python))
        assert message.startswith("error: Python 3.11 or newer is required; this is Python ")


@pytest.mark.parametrize("text", ["99999", "abc", "0", "-1", "80.5"])
def test_an_invalid_port_is_reported(checkout: Checkout, text: str) -> None:
    message = error_of(checkout.run("up", f"--port={text}"), code=2)
    assert f"--port: must be a number between 1 and 65535, not {text}" in message
    assert not checkout.venv.exists()


def test_a_port_in_use_is_reported_before_anything_is_installed(checkout: Checkout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        message = error_of(checkout.run("up", "--port", str(port)))
    assert f"Port {port} on 127.0.0.1 is in use. Stop the process that uses it or choose another --port." in message
    assert not checkout.venv.exists()


def test_a_privileged_port_is_reported(checkout: Checkout, ordinary_user: dict[str, object]) -> None:
    unprivileged = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if not unprivileged.exists() or int(unprivileged.read_text()) <= 80:
        pytest.skip("every user of this machine may listen on port 80")
    message = error_of(checkout.run("up", "--port", "80", **ordinary_user))
    assert message == "error: Only root may listen on port 80: choose a --port from 1024 on."


def test_an_unknown_option_is_reported(checkout: Checkout) -> None:
    message = error_of(checkout.run("up", "--prot", "8000"), code=2)
    assert message.endswith("(`python3 manage.py up --help` lists the options)")


@pytest.fixture
def installed(tmp_path: Path) -> Checkout:
    """Return this checkout with its packages, for commands that need them."""
    if not bootstrap.is_prepared(environment=bootstrap.Environment(root=ROOT), requirements=bootstrap.RUNTIME):
        pytest.skip("this environment was not created by manage.py, which would therefore change it")
    return Checkout(root=ROOT, variables={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})


def test_a_state_directory_on_a_full_disk_is_reported(installed: Checkout, small_disk: Path) -> None:
    with suppress(OSError), (small_disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    installed.variables["STATE_DIR"] = str(small_disk / "state")
    message = error_of(installed.run("up", "--no-input"))
    assert re.search(rf"{small_disk}\S* is (full \(0 MB are free|not usable \(No space left on device)", message)


def test_a_state_directory_on_a_read_only_file_system_is_reported(installed: Checkout, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    installed.variables["STATE_DIR"] = str(small_disk / "state")
    message = error_of(installed.run("up", "--no-input"))
    assert f"{small_disk}/state is not usable (Read-only file system): set STATE_DIR to one that" in message
