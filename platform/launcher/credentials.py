"""Secrets that are made once per state directory and kept in ``secrets.json``, mode 0600; the environment wins."""

import base64
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import LaunchError

# What the platform reads from the environment.
APPLICATION = ("SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS")
# What opens the servers that `up` starts.
SERVERS = (
    "POSTGRES_SUPERUSER_PASSWORD",
    "POSTGRES_OWNER_PASSWORD",
    "POSTGRES_APP_PASSWORD",
    "VALKEY_PASSWORD",
    "SANDBOX_TOKEN",
)


def generate() -> dict[str, str]:
    """A fresh value for every secret. Encryption keys are Fernet's: 32 bytes, URL-safe base64."""
    made = {name: secrets.token_urlsafe(32) for name in (*APPLICATION, *SERVERS)}
    return {**made, "ENCRYPTION_KEYS": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}


def load(*, state_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read the kept secrets, make and keep those that are missing; a value in the environment is used and not kept.

    Raises LaunchError when the file cannot be read: new secrets could not read what the old ones encrypted.
    """
    path = state_dir / "secrets.json"
    kept = _read(path)
    complete = {**generate(), **kept}
    if complete != kept:
        write_private(path=path, text=json.dumps(complete, indent=2))
    return {name: environment.get(name) or value for name, value in complete.items()}


def _read(path: Path) -> dict[str, str]:
    try:
        parsed: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as unreadable:
        raise LaunchError(
            f"{path} cannot be read ({unreadable}); restore it, it holds the keys of the stored data."
        ) from (unreadable)
    return parsed


def write_private(*, path: Path, text: str) -> None:
    """Replace a file at once and never readable by others, not even for the moment of writing."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
