"""Strict readers of environment variables; the only module that reads `os.environ`.

They raise `ImproperlyConfigured` for invalid values, so that a process with a wrong setting does not start.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

# The only useful option of a database URL; all others can be set with the variables of libpq.
_WRITABLE = "target_session_attrs=read-write"
LARGEST_PORT = 65535
# An origin as browsers send it: without a path, and in lower case.
_ORIGIN = re.compile(r"https?://[a-z0-9.:\[\]-]+")
_LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}


def text(name: str, default: str = "") -> str:
    """Read a variable, or the file whose path is in NAME_FILE (for mounted secrets)."""
    if (file := os.environ.get(f"{name}_FILE")) and name not in os.environ:
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(f"{name}_FILE names a file that cannot be read: {error}.") from error
    return os.environ.get(name, default).strip()


def required(name: str, *, hint: str) -> str:
    """Read a variable that has no default; `hint` completes the error message."""
    if not (value := text(name)):
        raise ImproperlyConfigured(f"{name} is not set: {hint}")
    return value


def flag(name: str, *, default: bool) -> bool:
    """Read `1`, `true`, `0` or `false`, in any case."""
    # Other words are refused: with a lenient reader "off" or "no" would count as true.
    value = text(name).lower()
    if value in {"", "1", "true", "0", "false"}:
        return default if value == "" else value in {"1", "true"}
    raise ImproperlyConfigured(f"{name} must be 1, true, 0 or false, not {value!r}.")


def integer(name: str, *, default: int, minimum: int = 0) -> int:
    """Read an integer of at least `minimum`."""
    value = text(name)
    try:
        number = int(value) if value else default
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise ImproperlyConfigured(f"{name} must be an integer of at least {minimum}, not {value!r}.")
    return number


def port(name: str, *, default: int = 0) -> int:
    """Read a port, or 0."""
    number = integer(name, default=default)
    if number > LARGEST_PORT:
        raise ImproperlyConfigured(f"{name} must be a port of at most {LARGEST_PORT}, not '{number}'.")
    return number


def integers(name: str, *, default: tuple[int, ...], minimum: int = 0) -> list[int]:
    """Read a comma-separated list of at least one integer."""
    try:
        numbers = [int(part) for part in text(name).split(",")] if text(name) else list(default)
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < minimum:
        raise ImproperlyConfigured(
            f"{name} must be integers of at least {minimum}, separated by commas, not {text(name)!r}."
        )
    return numbers


def choice(name: str, *, default: str, of: tuple[str, ...]) -> str:
    """Read one of the words in `of`."""
    value = text(name).lower() or default
    if value not in of:
        raise ImproperlyConfigured(f"{name} must be {' or '.join(of)}, not {value!r}.")
    return value


def names(name: str, *, default: tuple[str, ...] = ()) -> list[str]:
    """Read a comma-separated list."""
    return [part.strip() for part in text(name).split(",") if part.strip()] or list(default)


def public_url(hosts: Sequence[str], *, port: int, is_secure: bool) -> str:
    """Return the address that links have by default: the first host that is a name of the platform in the network.

    Behind TLS, a proxy answers on the standard port. Wildcards and the names of this machine are no such hosts.
    """
    host = next((name for name in hosts if name not in _LOCAL_NAMES and not name.startswith(("*", "."))), None)
    if host is None:
        return f"http://localhost:{port}"
    return f"https://{host}" if is_secure else f"http://{host}:{port}"


def origins(name: str) -> list[str]:
    """Read a comma-separated list of origins such as `https://app.example.com`, or `*` alone."""
    found = names(name)
    if found == ["*"] or all(_ORIGIN.fullmatch(origin) for origin in found):
        return found
    raise ImproperlyConfigured(
        f"{name} must be * or origins such as https://app.example.com, separated by commas, not {text(name)!r}."
    )


def for_program(**variables: str) -> dict[str, str]:
    """Return the environment for an external program such as pg_dump, with additional variables."""
    return {**os.environ, **variables}


def postgres(url: str, *, name: str) -> dict[str, Any]:
    """Parse `postgresql://user:password@host:port/database` into NAME, USER, PASSWORD, HOST, PORT and OPTIONS.

    Of several hosts, separated by commas, the one that accepts writes is used: their HOST and PORT are libpq's lists.
    """
    # Other options after a `?` are refused rather than ignored; libpq reads them from its own variables, such as
    # PGSSLMODE.
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    try:
        places = [
            (address.hostname or "", address.port or 5432) for address in (urlsplit(f"//{host}") for host in hosts)
        ]
        user = urlsplit(f"//{parts.netloc.rpartition('@')[0]}@")
    except ValueError:
        places = []
    if (
        parts.scheme not in {"postgres", "postgresql"}
        or not parts.path.strip("/")
        or not places
        or (len(places) > 1 and not all(host for host, _ in places))
        or parts.query not in {"", _WRITABLE}
    ):
        raise ImproperlyConfigured(f"{name} must look like postgresql://user:password@host:5432/database.")
    is_one = len(places) == 1
    return {
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(user.username or ""),
        "PASSWORD": unquote(user.password or ""),
        "HOST": ",".join(host for host, _ in places),
        "PORT": places[0][1] if is_one else ",".join(str(port) for _, port in places),
        "OPTIONS": {} if is_one and not parts.query else {"target_session_attrs": "read-write"},
    }


_MAIL_SCHEMES = {"smtp": ("none", 25), "smtp+starttls": ("starttls", 587), "smtps": ("tls", 465)}
_MAIL_PORTS = dict(_MAIL_SCHEMES.values())


def mail_server(
    url: str, *, host: str, port: int, user: str, password: str, security: str
) -> dict[str, str | int | bool]:
    """Return Django's settings of the SMTP server, from a URL or from single values.

    The URL looks like `smtps://user:password@host` and takes precedence. All settings are empty if neither a URL nor a
    host is given. Port 0 means the usual port for `security`.
    """
    if url:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname or "", parts.port or 0
        except ValueError:
            host = ""
        if parts.scheme not in _MAIL_SCHEMES or not host or parts.path.strip("/") or parts.query:
            raise ImproperlyConfigured(
                f"EMAIL_URL must look like smtps://user:password@host:465, with {', '.join(_MAIL_SCHEMES)}."
            )
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        security = _MAIL_SCHEMES[parts.scheme][0]
    if security not in _MAIL_PORTS:
        raise ImproperlyConfigured(f"SMTP_SECURITY must be {', '.join(_MAIL_PORTS)}, not {security!r}.")
    return {
        "EMAIL_HOST": host,
        "EMAIL_PORT": port or _MAIL_PORTS[security],
        "EMAIL_HOST_USER": user,
        "EMAIL_HOST_PASSWORD": password,
        "EMAIL_USE_TLS": security == "starttls",
        "EMAIL_USE_SSL": security == "tls",
    }


def set_default(name: str, value: str) -> None:
    """Set a variable that a library reads, unless it is set."""
    os.environ.setdefault(name, value)
