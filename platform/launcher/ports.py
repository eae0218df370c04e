"""Free ports on this machine."""

import errno
import socket
import zlib

from launcher.errors import LaunchError

NEIGHBOURS = 20


def is_free(*, host: str, port: int) -> bool:
    """Whether a server could listen there now.

    Raises LaunchError when no server of ours ever could: the address is not this machine's, or the port is privileged.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Without it a connection of a server that just stopped (TIME_WAIT) would make the port look taken.
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
    """A port that the kernel says is free; the race until it is used is small, and callers retry."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def usual(*, base: int, key: str) -> int:
    """A port between ``base`` and ``base`` + 2,500 that is always the same for one key.

    Instances in different directories so start at the same moment without choosing the same port.
    """
    return base + zlib.crc32(key.encode()) % 2500


def prefer(*, host: str, port: int) -> int:
    """That port, else one of the next few, else any free one."""
    for candidate in range(port, min(port + NEIGHBOURS, 65536)):
        if is_free(host=host, port=candidate):
            return candidate
    return any_free(host=host)
