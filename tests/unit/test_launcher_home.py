"""Directories of the embedded servers when root starts them and their account cannot enter the checkout."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import postgres
from launcher.errors import LaunchError
from launcher.home import ServerHome, SystemAccount, abandoned_homes, may_enter, server_home

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the account")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Return a state directory below one that only its owner may enter, like a checkout in a home directory."""
    tmp_path.chmod(0o700)
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a directory that all accounts may enter."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_data_stays_in_the_state_directory_without_a_change_of_account(state_dir: Path, shared: Path) -> None:
    home = ServerHome(directory=state_dir, account=None, shared=shared)
    assert home.make("postgres") == state_dir / "postgres"
    assert not list(shared.iterdir())


@as_root
def test_permissions_of_an_inaccessible_state_directory_are_not_changed(state_dir: Path, shared: Path) -> None:
    home = server_home(state_dir=state_dir, shared=shared)
    assert home.directory.parent == shared
    assert state_dir.parent.stat().st_mode & 0o777 == 0o700
    assert may_enter(home.make("postgres"), account=home.account)


@as_root
def test_the_next_start_uses_the_same_directory(state_dir: Path, shared: Path) -> None:
    first = server_home(state_dir=state_dir, shared=shared)
    assert server_home(state_dir=state_dir, shared=shared) == first
    assert abandoned_homes(state_dir=state_dir, shared=shared) == []


@as_root
def test_data_stays_with_the_account_that_owns_it(shared: Path) -> None:
    (shared / "postgres").mkdir()
    os.chown(shared / "postgres", 5, 60)
    account = server_home(state_dir=shared).account
    assert account is not None
    assert (account.uid, account.gid) == (5, 60)


@as_root
def test_a_deleted_state_directory_starts_empty_and_old_data_is_reported(state_dir: Path, shared: Path) -> None:
    first = server_home(state_dir=state_dir, shared=shared).directory
    shutil.rmtree(state_dir)
    state_dir.mkdir()
    assert server_home(state_dir=state_dir, shared=shared).directory != first
    assert abandoned_homes(state_dir=state_dir, shared=shared) == [first]


@as_root
def test_a_program_that_the_account_cannot_reach_is_copied_with_its_libraries(state_dir: Path, shared: Path) -> None:
    package, libraries = state_dir / "package", state_dir / "package.libs"
    package.mkdir()
    libraries.mkdir()
    (libraries / "word").write_text("hello")
    program = package / "run"
    libraries.chmod(0o700)  # like a checkout created with umask 077
    program.write_text('#!/bin/sh\nexec cat "$(dirname "$0")/../package.libs/word"\n')
    program.chmod(0o700)
    home = server_home(state_dir=state_dir, shared=shared)
    copy = home.reachable(program=program, packages=(package, libraries), version="1.0")
    assert home.account is not None
    completed = subprocess.run([copy], cwd="/", capture_output=True, check=True, user=home.account.uid, extra_groups=[])
    assert completed.stdout == b"hello"


@as_root
def test_an_account_cannot_execute_an_inaccessible_program(state_dir: Path) -> None:
    program = state_dir / "run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert may_enter(program, account=None)
    assert not may_enter(program, account=SystemAccount(uid=65534, gid=65534))


def test_data_of_another_major_version_is_refused(shared: Path) -> None:
    home = ServerHome(directory=shared, account=None)
    (home.make("postgres") / "pg9").mkdir()
    with pytest.raises(LaunchError, match="contains data of PostgreSQL 9"):
        postgres.open_cluster(home=home, port=1, password="unused")
