"""The state directory: who runs in it, and the environment that this instance's other commands need."""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from launcher.credentials import write_private
from launcher.errors import LaunchError
from launcher.processes import Identity, current, identify, is_same

DEFAULT = ".run"


@dataclass(frozen=True, kw_only=True)
class State:
    """Paths inside a state directory."""

    directory: Path

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def records(self) -> Path:
        return self.directory / "pids"

    @property
    def environment_file(self) -> Path:
        return self.directory / "environment.json"


def locate(*, root: Path, environment: Mapping[str, str]) -> State:
    """STATE_DIR, relative to the checkout wherever the command is given."""
    return State(directory=(root / (environment.get("STATE_DIR") or DEFAULT)).resolve())


class InstanceLock:
    """The right to run in a state directory; the kernel takes it back when the process ends, however it ends."""

    def __init__(self, state: State) -> None:
        """Raises LaunchError, with pid and address, when another process holds it, or when it cannot be written."""
        try:
            state.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = (state.directory / "lock").open("a+")
        except OSError as refused:
            raise LaunchError(f"The state directory {state.directory} cannot be used: {refused.strerror}.") from refused
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(self._who()) from None
        self.announce(url="")

    def announce(self, *, url: str) -> None:
        """Tell who asks next where we answer."""
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), "url": url}, self._file)
        self._file.flush()

    def release(self) -> None:
        self._file.close()

    def _who(self) -> str:
        self._file.seek(0)
        try:
            said = json.load(self._file)
            pid, url = int(said["pid"]), str(said["url"])
        except (ValueError, KeyError, TypeError):
            return "The platform is already starting here."
        where = f" at {url}" if url else ""
        return f"The platform is already running{where} (pid {pid}): stop it with Ctrl-C there or `kill {pid}`."


def write_environment(*, state: State, variables: Mapping[str, str]) -> None:
    """Keep what the other commands of this running instance need, secrets included, for our user only."""
    content = {"process": asdict(current()), "variables": dict(variables)}
    write_private(path=state.environment_file, text=json.dumps(content, indent=2))


def read_environment(*, state: State) -> dict[str, str]:
    """The variables of the instance that runs now; nothing when none does, even if a killed one left its file.

    Raises LaunchError when there is one that belongs to another user.
    """
    try:
        content = json.loads(state.environment_file.read_text())
        owner = Identity(**content["process"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
    except PermissionError:
        raise LaunchError(
            f"{state.environment_file} belongs to another user: run this command as the user who runs the platform, "
            "or set DATABASE_URL."
        ) from None
    variables: dict[str, str] = content["variables"]
    return variables if is_same(owner, identify(owner.pid)) else {}
