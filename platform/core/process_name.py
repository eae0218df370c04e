"""The name of a process, which no other process ever has."""

import os
import secrets
import socket
from functools import cache


@cache
def process_name() -> str:
    """Return the unique name of this process, as the owner of leases and in traces."""
    # Host and process id are not enough: containers with the same host name may all run as process 1.
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _name_process() -> None:
    # Named before the first use: two threads with the first call at the same time would get different names.
    process_name.cache_clear()
    process_name()


_name_process()
os.register_at_fork(after_in_child=_name_process)
