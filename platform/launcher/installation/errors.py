"""Explanations of failed installations, with a remedy, from error numbers and the output of uv and pip."""

import errno
import os
import pwd
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

AGAIN = "then run the same command again"
FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM)
# uv: "os error 28"; pip and Python: "[Errno 28]".
ERROR_NUMBER = re.compile(r"(?:os error |\[Errno )(\d+)[)\]]")
PATH = re.compile(r"""[`'"](/[^`'"]+)[`'"]""")
URL = re.compile(r"""https?://[^\s`'"<>)]+""")
UNREACHABLE = re.compile(
    r"Connection refused|Connection reset|Network is unreachable|No route to host|dns error|Name or service not known"
    r"|name resolution|nodename nor servname|timed out|timeout|tcp connect error|error sending request"
    r"|Failed to establish a new connection|connection broken|Remote end closed|Connection aborted|connection closed",
    re.IGNORECASE,
)
UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|certificate verify failed|UnknownIssuer")
STATUS = re.compile(
    r"HTTP status (?:client|server) error \((\d{3})|HTTP error (\d{3})|(\d{3}) (?:client|server) error"
    r"|returned a (\d{3}) [\w ]+ error",
    re.IGNORECASE,
)
REFUSED = (401, 403, 407)
MISSING = re.compile(
    r"Because (\S+) was not found in the package registry|there is no version of (\S+?)(?: and|,)"
    r"|No matching distribution found for (\S+)"
)
WRONG_HASH = re.compile(r"Hash mismatch for `([^`]+)`|DO NOT MATCH THE HASHES.*?\n\s+(\S+)", re.DOTALL)
INDEX_ADVICE = "set PIP_INDEX_URL (or UV_DEFAULT_INDEX) to an index that this machine can reach, or HTTPS_PROXY"


def explain(output: str, *, directory: Path, missing: bool = True) -> str | None:
    """Return the cause of a failed installation in ``directory``, or None if the output does not reveal it.

    Without ``missing``, a package that the index lacks does not count as a cause.
    """
    for line in reversed(output.splitlines()):
        for number in ERROR_NUMBER.findall(line):
            named = PATH.search(line)
            path = Path(named[1]) if named else directory
            if message := explain_os_error(OSError(int(number), ""), path=path):
                return message
    if wrong := WRONG_HASH.search(output):
        name = wrong[1] or wrong[2]
        return (
            f"The package index delivered another file of {name} than the one that is locked (its hash differs), so "
            f"nothing was installed: use another index, or empty the cache of a mirror, {AGAIN}."
        )
    server = _server(output)
    if UNTRUSTED.search(output):
        return (
            f"The certificate of {server} is not trusted: set SSL_CERT_FILE to a file with the certificates of your "
            f"network, {AGAIN}."
        )
    if found := STATUS.search(output):
        status = int(next(filter(None, found.groups())))
        if status in REFUSED:
            return f"{server} refuses access (HTTP status {status}): check the credentials of the package index."
        if status >= 500:
            return f"{server} fails with HTTP status {status}: wait until it works or use another index, {AGAIN}."
    if reason := UNREACHABLE.search(output):
        return (
            f"{server} cannot be reached ({_reason(output, default=reason[0])}): check the network connection, or "
            f"{INDEX_ADVICE}."
        )
    if missing and (unknown := MISSING.search(output)):
        name = next(filter(None, unknown.groups()))
        return f"The package index does not have {name}: use an index that has it ({INDEX_ADVICE})."
    return None


def explain_os_error(
    error: BaseException, *, path: Path, needs: str = "the installation needs about 500 MB there and in uv's cache"
) -> str | None:
    """Return the cause of an error of the operating system at ``path``, or None if it is of another kind.

    ``needs`` says how much disk space is necessary.
    """
    number = getattr(error, "errno", None)
    if number in FULL:
        free = free_megabytes(path)
        return f"The disk of {path} is full ({free} MB are free; {needs}): free some space, {AGAIN}."
    if number == errno.EFBIG:
        return f"A file at {path} exceeds the file size limit (`ulimit -f`): raise it, {AGAIN}."
    if number == errno.EROFS:
        return (
            f"{path} is on a read-only file system: copy the checkout to a directory that you can write to, and run "
            "the command in it."
        )
    if number in DENIED:
        place = next(place for place in (path, *path.absolute().parents) if place.exists())
        return (
            f"You ({_user(os.geteuid())}) have no permission to write to {place}, which belongs to "
            f"{_user(place.stat().st_uid)}: run the command as that user, or in a checkout of your own."
        )
    return None


def describe_signal(number: int) -> str:
    """Return a line of output for an installer that was ended by a signal."""
    if number == signal.SIGXFSZ:
        return f"File size limit exceeded (os error {errno.EFBIG})"
    return f"It was ended by the signal {signal.Signals(number).name}."


def is_writable(path: Path) -> bool:
    """Return whether this process can create files in the directory."""
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _server(output: str) -> str:
    urls = [urlsplit(url) for url in URL.findall(output)]
    names = [url.hostname + (f":{url.port}" if url.port else "") for url in urls if url.hostname]
    pools = re.findall(r"host='([^']+)', port=(\d+)", output)
    name = names[-1] if names else ":".join(pools[-1]) if pools else ""
    return f"The package index at {name}" if name else "The package index"


def _reason(output: str, *, default: str) -> str:
    causes = re.findall(r"cause: (.+)", output, re.IGNORECASE)
    last = causes[-1] if causes else default
    return re.sub(r"\s*\(os error \d+\)", "", last).strip().rstrip(".")


def free_megabytes(path: Path) -> int:
    """Return the free space for this user on the disk of a path that need not exist."""
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    status = os.statvfs(existing)
    return status.f_bavail * status.f_frsize // 1_000_000


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
