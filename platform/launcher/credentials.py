"""Secrets of an instance, generated once and stored in ``secrets.json`` (mode 0600). Environment variables override."""

import base64
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import LaunchError

# Read by the platform from environment variables.
APPLICATION = ("SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS")
# For the servers that `up` starts.
SERVERS = (
    "POSTGRES_SUPERUSER_PASSWORD",
    "POSTGRES_OWNER_PASSWORD",
    "POSTGRES_APP_PASSWORD",
    "VALKEY_PASSWORD",
    "SANDBOX_TOKEN",
)


def generate() -> dict[str, str]:
    """Return a new value for every secret."""
    generated = {name: secrets.token_urlsafe(32) for name in (*APPLICATION, *SERVERS)}
    # Fernet requires exactly 32 bytes in URL-safe base64.
    return {**generated, "ENCRYPTION_KEYS": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}


def load(*, state_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return all secrets, generating and storing those that are missing.

    Values from the environment take precedence and are not stored. Raises LaunchError if the file cannot be read.
    """
    path = state_dir / "secrets.json"
    stored = _read(path)
    complete = {**generate(), **stored}
    if complete != stored:
        write_private(path=path, text=json.dumps(complete, indent=2))
    return {name: environment.get(name) or value for name, value in complete.items()}


def _read(path: Path) -> dict[str, str]:
    try:
        parsed: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as unreadable:
        # Never replaced: data encrypted with the old keys would be lost.
        raise LaunchError(
            f"{path} cannot be read ({unreadable}). Restore it: it contains the encryption keys of the stored data."
        ) from (unreadable)
    return parsed


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
