"""Selection of free TCP ports."""

import errno
import socket
import zlib

from launcher.errors import LaunchError

NEIGHBOURS = 20


def is_free(*, host: str, port: int) -> bool:
    """Return whether a server could listen on the port now.

    Raises LaunchError if it never could, because the address is not local or the port is privileged.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Otherwise connections of a server that has just stopped (TIME_WAIT) would make the port appear in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as unknown:
        raise LaunchError(f"The host {host} cannot be resolved: {unknown.strerror}.") from unknown
    except OSError as refused:
        if refused.errno == errno.EADDRINUSE:
            return False
        raise LaunchError(f"Cannot listen on {host} port {port}: {refused.strerror}.") from refused
    return True


def any_free(*, host: str = "127.0.0.1") -> int:
    """Return a port that is free at the moment. Another process may take it before the caller does."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def usual(*, base: int, key: str) -> int:
    """Return a port between ``base`` and ``base`` + 2,500 that depends only on the key."""
    # Instances in different directories can start at the same time without choosing the same port.
    return base + zlib.crc32(key.encode()) % 2500


def prefer(*, host: str, port: int) -> int:
    """Return the port if it is free, else one of the next 20, else any free port."""
    for candidate in range(port, min(port + NEIGHBOURS, 65536)):
        if is_free(host=host, port=candidate):
            return candidate
    return any_free(host=host)
