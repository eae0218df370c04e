"""The state directory: its lock, the secrets of the instance, and the environment of its other commands.

Secrets are generated once and stored in ``secrets.json`` (mode 0600). Environment variables override them.
"""

import base64
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from launcher.errors import LaunchError
from launcher.processes import Identity, current, identify, is_same

# Secrets that the platform reads from environment variables.
APPLICATION_SECRETS = ("SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS")
# Secrets of the servers that `up` starts.
SERVER_SECRETS = (
    "POSTGRES_SUPERUSER_PASSWORD",
    "POSTGRES_OWNER_PASSWORD",
    "POSTGRES_APP_PASSWORD",
    "VALKEY_PASSWORD",
    "SANDBOX_TOKEN",
)


def generate_secrets() -> dict[str, str]:
    """Return a new value for every secret."""
    # 54 characters each: Django's deployment checks require 50.
    generated = {name: secrets.token_urlsafe(40) for name in (*APPLICATION_SECRETS, *SERVER_SECRETS)}
    # Fernet requires exactly 32 bytes in URL-safe base64.
    return {**generated, "ENCRYPTION_KEYS": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}


def load_secrets(*, state_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return all secrets, generating and storing those that are missing.

    Values from the environment take precedence and are not stored. Raises LaunchError if the file cannot be read.
    """
    path = state_dir / "secrets.json"
    stored: dict[str, str] = {}
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        pass
    except (ValueError, OSError) as unreadable:
        # Never replaced: data encrypted with the old keys would be lost.
        raise LaunchError(
            f"{path} cannot be read ({unreadable}). Restore it: it contains the encryption keys of the stored data."
        ) from unreadable
    complete = {**generate_secrets(), **stored}
    if complete != stored:
        write_private(path=path, text=json.dumps(complete, indent=2))
    return {name: environment.get(name) or value for name, value in complete.items()}


def write_private(*, path: Path, text: str) -> None:
    """Replace a file atomically with one that only its owner can read."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    # Created with this mode: changing it afterwards would leave a moment in which others could open the file.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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

    @property
    def status_file(self) -> Path:
        """File with the restarts of the child processes, for the console."""
        return self.directory / "processes.json"


def locate(*, root: Path, environment: Mapping[str, str]) -> State:
    """Return the state directory. STATE_DIR is relative to the checkout, not to the working directory."""
    return State(directory=(root / (environment.get("STATE_DIR") or DEFAULT)).resolve())


class InstanceLock:
    """Exclusive lock on a state directory. The kernel releases it when the process ends, also after a crash."""

    def __init__(self, state: State) -> None:
        """Take the lock.

        Raises LaunchError if another process holds it (with its pid and URL), or if the directory is not writable.
        """
        try:
            state.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = (state.directory / "lock").open("a+")
        except OSError as refused:
            raise LaunchError(
                f"The state directory {state.directory} is not usable ({refused.strerror}): set STATE_DIR to one that "
                "you can write to."
            ) from refused
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            try:
                holder = json.load(self._file)
                at_url = f" at {holder['url']}" if holder["url"] else ""
                pid = int(holder["pid"])
            except (ValueError, KeyError, TypeError):
                # The holder has the lock but has not written the file yet.
                raise LaunchError("The platform is already starting in this directory.") from None
            raise LaunchError(
                f"The platform is already running{at_url} (pid {pid}). Stop it with Ctrl-C or `kill {pid}`."
            ) from None
        self.announce(url="")

    def announce(self, *, url: str) -> None:
        """Write pid and URL to the lock file, for the error message of a second start."""
        # Unbuffered: on a full disk, a buffer would fail a second time when the file is closed.
        os.ftruncate(self._file.fileno(), 0)
        os.pwrite(self._file.fileno(), json.dumps({"pid": os.getpid(), "url": url}).encode(), 0)

    def release(self) -> None:
        self._file.close()


def write_environment(*, state: State, variables: Mapping[str, str]) -> None:
    """Store the variables that other commands of this instance need, secrets included, readable by this user only."""
    content = {"process": asdict(current()), "variables": dict(variables)}
    write_private(path=state.environment_file, text=json.dumps(content, indent=2))


def read_environment(*, state: State) -> dict[str, str]:
    """Return the variables of the running instance, or an empty dictionary if none is running.

    Raises LaunchError if the file belongs to another user.
    """
    try:
        content = json.loads(state.environment_file.read_text())
        owner = Identity(**content["process"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
    except PermissionError:
        raise LaunchError(
            f"{state.environment_file} belongs to another user. Run this command as the user who runs the platform, "
            "or set DATABASE_URL."
        ) from None
    # An instance that was killed leaves its file behind.
    variables: dict[str, str] = content["variables"]
    return variables if is_same(owner, identify(owner.pid)) else {}
