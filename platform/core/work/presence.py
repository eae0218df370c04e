"""Presence of processes in the database: each has a connection with its name, which ends when the process dies.

Leases also reveal dead processes, but only when they expire, and they have to outlast pauses and a restart of the
database. The end of a process's connection shows its death earlier. The reaction must be safe even if the process is
still alive: its leases guard its writes.

The connection also keeps the time of the database, see `core.clock`.
"""

import atexit
import logging
import threading
from collections.abc import Callable, Collection
from datetime import datetime

import psycopg
from django.db import Error as DatabaseError
from django.db import connection as django_connection

from core.clock import shared, uptime
from core.db.database import database_conninfo
from core.process_name import process_name

logger = logging.getLogger(__name__)
Died = Callable[[Collection[str]], object]
POLL_SECONDS = 1.0
# A living process reopens a lost connection within one poll.
_MISSES = 3
_PREFIX = "platform:"
# Processes announce their start here, so that a process is known even if it dies before the next poll.
_CHANNEL = "presence"
# Closes a connection whose network has failed: by default, Linux would keep it for two hours, like a living process.
_SESSION = """
SELECT set_config('application_name', %s, false), set_config('tcp_keepalives_idle', '5', false),
    set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '3', false),
    pg_notify(%s, %s)
"""
_POLL = """
SELECT clock_timestamp(), pg_is_in_recovery(), array_agg(application_name) FROM pg_stat_activity
WHERE starts_with(application_name, %s) AND datname = current_database() AND usename = current_user
"""
# Slower answers are too inaccurate to set the clock.
_SLOW_SECONDS = 1.0
_is_leaving = threading.Event()


def start(died: Died) -> None:
    """Start a daemon thread that keeps this process present, and calls `died` with the names of dead processes.

    Names are the last part of `process_name`.
    """
    thread = threading.Thread(target=_attend, args=(died,), name="presence", daemon=True)
    thread.start()
    # Compiled code of a daemon thread must not run while the interpreter is finalized.
    atexit.register(_leave, thread)


def _leave(thread: threading.Thread) -> None:
    _is_leaving.set()
    thread.join(POLL_SECONDS)


class Watch:
    """Tracker of the present processes, which finds processes that have died."""

    def __init__(self) -> None:
        self._misses: dict[str, int] = {}

    def announce(self, name: str) -> None:
        """Record that a process has started."""
        self._misses.setdefault(name, 0)

    def note(self, present: Collection[str]) -> list[str]:
        """Record the processes that are present now. Return those that have been missing `_MISSES` times in a row."""
        self._misses = {name: count + 1 for name, count in self._misses.items()} | dict.fromkeys(present, 0)
        dead = [name for name, count in self._misses.items() if count >= _MISSES]
        for name in dead:
            del self._misses[name]
        return dead


def _attend(died: Died) -> None:
    while not _is_leaving.is_set():
        try:
            _watch(died)
        except psycopg.Error as error:
            logger.debug("the presence of processes is unknown: %s", error)
        except Exception:
            logger.exception("the presence of processes is unknown")
        _is_leaving.wait(POLL_SECONDS)


def _watch(died: Died) -> None:
    own = process_name().rpartition(":")[2]
    with psycopg.connect(database_conninfo(), autocommit=True) as connection:
        (backend,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
        # Behind a pooler, this number is the pooler's own, and connections do not show whether a process lives.
        is_direct = backend == connection.info.backend_pid
        if is_direct:
            connection.execute(f"LISTEN {_CHANNEL}")
            connection.execute(_SESSION, [_PREFIX + own, _CHANNEL, own])
        # A new object for each connection: after a restart of the database, all processes have lost their connections.
        watch = Watch()
        connection.add_notify_handler(lambda note: watch.announce(note.payload))
        while not _is_leaving.is_set():
            asked = uptime()
            moment, is_standby, names = connection.execute(_POLL, [_PREFIX]).fetchone() or (None, False, None)
            if is_standby:
                # This happens after a failover. The other processes are connected to the new primary.
                return
            took = uptime() - asked
            if isinstance(moment, datetime) and took < _SLOW_SECONDS:
                shared.set(moment, at=asked + took / 2, error=took / 2)
            if is_direct and (dead := watch.note([name.removeprefix(_PREFIX) for name in names or ()])):
                _report(died, dead)
            _is_leaving.wait(POLL_SECONDS)


def _report(died: Died, dead: list[str]) -> None:
    try:
        died(dead)
    except DatabaseError:
        # No harm is done: the leases of dead processes expire.
        logger.warning("the work of dead processes cannot be released", exc_info=True)
    finally:
        django_connection.close()
