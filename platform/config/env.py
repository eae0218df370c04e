"""Strict readers of the environment. A bad value stops the start with one sentence; nobody else reads `os.environ`."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str = "") -> str:
    """The variable, or the content of the file that NAME_FILE names (for mounted secrets)."""
    if (file := os.environ.get(f"{name}_FILE")) and name not in os.environ:
        return Path(file).read_text().strip()
    return os.environ.get(name, default).strip()


def required(name: str, *, why: str) -> str:
    """A variable without which nothing can start."""
    if not (value := text(name)):
        msg = f"{name} is not set: {why}"
        raise ImproperlyConfigured(msg)
    return value


def flag(name: str, *, default: bool) -> bool:
    """`1`/`true` or `0`/`false`; anything else is refused, since "False" would otherwise be true."""
    value = text(name).lower()
    if value in {"", "1", "true", "0", "false"}:
        return default if value == "" else value in {"1", "true"}
    msg = f"{name} must be 1, true, 0 or false, not {value!r}."
    raise ImproperlyConfigured(msg)


def integer(name: str, *, default: int, minimum: int = 0) -> int:
    """A whole number of at least `minimum`."""
    value = text(name)
    try:
        number = int(value) if value else default
    except ValueError:
        number = minimum - 1
    if number < minimum:
        msg = f"{name} must be a whole number of at least {minimum}, not {value!r}."
        raise ImproperlyConfigured(msg)
    return number


def integers(name: str, *, default: tuple[int, ...], minimum: int = 0) -> list[int]:
    """A comma-separated list of whole numbers, at least one."""
    try:
        numbers = [int(part) for part in text(name).split(",")] if text(name) else list(default)
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < minimum:
        msg = f"{name} must be whole numbers of at least {minimum}, separated by commas, not {text(name)!r}."
        raise ImproperlyConfigured(msg)
    return numbers


def names(name: str, *, default: tuple[str, ...] = ()) -> list[str]:
    """A comma-separated list."""
    return [part.strip() for part in text(name).split(",") if part.strip()] or list(default)


def postgres(url: str, *, name: str) -> dict[str, str | int]:
    """NAME, USER, PASSWORD, HOST and PORT of a `postgresql://user:password@host:port/database` URL.

    Options after a `?` are refused rather than ignored; libpq reads them from its own variables, such as PGSSLMODE.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 5432
    except ValueError:
        port = 0
    if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/") or not port or parts.query:
        msg = f"{name} must look like postgresql://user:password@host:5432/database."
        raise ImproperlyConfigured(msg)
    return {
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": port,
    }
