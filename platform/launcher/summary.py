"""The summary that `up` prints at the end: URLs, credentials and a curl command that works as printed."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from launcher.address import Address
from launcher.credentials import write_private
from launcher.errors import LaunchError


@dataclass(frozen=True, kw_only=True)
class DemoObjects:
    """Result of `prepare_demo`. `admin_password` is set only if the user was created just now."""

    team: str
    key: str
    admin_user: str
    admin_password: str | None


def parse(text: str) -> DemoObjects:
    """Parse the JSON object of `prepare_demo`. Raises LaunchError if it is invalid."""
    try:
        made = json.loads(text)
        return DemoObjects(**{name: made[name] for name in ("team", "key", "admin_user", "admin_password")})
    except (ValueError, KeyError, TypeError) as unreadable:
        raise LaunchError(f"`prepare_demo` did not return its JSON object: {unreadable!r}.") from unreadable


def password_hint(*, prepared: DemoObjects, state_dir: Path) -> str:
    """Return a hint to the admin password: the password itself if it is new, else the file that contains it."""
    kept = state_dir / "admin-password"
    # Only a hash is in the database, so a new password is stored before anything else can fail.
    if prepared.admin_password:
        write_private(path=kept, text=f"{prepared.admin_password}\n")
        return f"password {prepared.admin_password}"
    if kept.exists():
        return f"password in {kept} unless you changed it"
    return f"your password (or: python3 manage.py changepassword {prepared.admin_user})"


def curl(*, address: Address, key: str, model: str) -> str:
    body = json.dumps({"model": model, "input": "Hello"}, separators=(",", ":"))
    return (
        f'curl {address.url}/v1/responses -H "Authorization: Bearer {key}" -H "Content-Type: application/json" '
        f"-d {shlex.quote(body)}"
    )


def block(*, address: Address, prepared: DemoObjects, hint: str, model: str, logs: Path) -> list[tuple[str, str]]:
    """Return the labels and values of the summary in display order."""
    return [
        ("API", f"{address.url}/v1"),
        ("Admin", f"{address.url}/admin/  user {prepared.admin_user}, {hint}"),
        ("Key", prepared.key),
        ("Logs", str(logs)),
        ("Try it", curl(address=address, key=prepared.key, model=model)),
    ]
