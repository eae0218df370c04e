"""Instance file and lock: one platform per state directory, visible to other commands while it runs."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import state
from launcher.errors import LaunchError
from launcher.state import InstanceLock, State

VARIABLES = {"DATABASE_URL": "postgresql://app:secret@127.0.0.1:1/platform", "PORT": "8000"}


@pytest.fixture
def here(tmp_path: Path) -> State:
    return State(directory=tmp_path)


def test_the_directory_is_relative_to_the_checkout_not_the_working_directory(tmp_path: Path) -> None:
    assert state.locate(root=tmp_path, environment={}).directory == tmp_path / ".run"
    assert state.locate(root=tmp_path, environment={"STATE_DIR": "other"}).directory == tmp_path / "other"
    assert state.locate(root=tmp_path, environment={"STATE_DIR": "/srv/state"}).directory == Path("/srv/state")


def test_a_second_start_reports_pid_and_address_of_the_first(here: State) -> None:
    first = InstanceLock(here)
    first.announce(url="http://127.0.0.1:8000")
    with pytest.raises(LaunchError, match=rf"already running at http://127.0.0.1:8000 \(pid {os.getpid()}\)"):
        InstanceLock(here)
    first.release()


def test_the_lock_is_free_after_an_instance_has_ended(here: State) -> None:
    InstanceLock(here).release()
    InstanceLock(here).release()


def test_an_unusable_directory_is_rejected_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"^The state directory .* is not usable \(Not a directory\): set STATE_DIR"):
        InstanceLock(State(directory=tmp_path / "file"))


def test_other_commands_see_the_running_instance(here: State) -> None:
    state.write_environment(state=here, variables=VARIABLES)
    assert state.read_environment(state=here) == VARIABLES


def test_only_the_owner_may_read_the_environment(here: State) -> None:
    state.write_environment(state=here, variables=VARIABLES)
    assert stat.S_IMODE(here.environment_file.stat().st_mode) == 0o600


def test_the_file_of_a_killed_instance_is_ignored(here: State) -> None:
    state.write_environment(state=here, variables=VARIABLES)
    content = json.loads(here.environment_file.read_text())
    content["process"]["started"] = "1"
    here.environment_file.write_text(json.dumps(content))
    assert state.read_environment(state=here) == {}


def test_no_instance_is_found_without_a_running_one(here: State) -> None:
    assert state.read_environment(state=here) == {}


def test_the_lock_is_released_when_its_owner_is_killed(here: State, tmp_path: Path) -> None:
    script = (
        f"import os, sys; sys.path.insert(0, {str(Path(state.__file__).parents[1])!r}); from pathlib import Path; "
        f"from launcher.state import InstanceLock, State; "
        f"lock = InstanceLock(State(directory=Path({str(tmp_path)!r}))); "
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    InstanceLock(here).release()
