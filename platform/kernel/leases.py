"""Leases: a process that works on a row owns it until a time, which it moves on while it works.

Taking a lease increments the token of the row (a fencing token), and every write names the token. So a process that has
lost its lease without noticing, because it was paused for example, writes nothing.
"""

import os
import secrets
import socket
from datetime import datetime, timedelta

from django.conf import settings

from kernel.clock import now


def process_name() -> str:
    """Return a unique name for this process, as the owner of leases."""
    # Host and process id are not enough: containers with the same host name may all run as process 1.
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


PROCESS = process_name()


def lease_until() -> datetime:
    """Return when a lease that is taken or renewed now expires (UTC)."""
    return now() + timedelta(seconds=settings.LEASE_SECONDS)
