"""Isolated processes, in which a worker continues the background runs of a dead process.

If a worker dies, one of its many runs may have crashed it. The runs continue in a separate process, where they cannot
crash another worker. If that process dies too while its worker lives, one of its runs has crashed it. If there was only
one run in the process, that run fails. Otherwise, each of the runs continues in a process of its own, one after the
other.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from django.conf import settings

from core.db.db_threads import in_db_thread
from core.work import worker_loop
from core.work.leases import expired_before, has_expired, take
from responses.lifecycle import sweeper
from responses.models import RUNNING, Isolation, Response
from responses.runs import open_calls
from tenants import scope

logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
_PAUSE_AFTER_DEATH_SECONDS = 2.0
# If a run of the group crashes its process, the runs continue alone, which takes up to this many process starts.
_MOST_IN_GROUP = 32
# Pause before a worker reacts to the death of a process, because the worker itself may be about to be killed together
# with all its processes. The pause is shorter than the time after which other processes release the runs (see
# `core.work.presence`).
_DOUBT_SECONDS = 1.0
_MARGIN = timedelta(seconds=1)
# Additional time that a stopping process gets after the time for its runs, for their last step and its exit.
_EXIT_SECONDS = 5.0


class IsolatedProcesses:
    """Starts a process for each kind of isolation while runs with this isolation wait."""

    def __init__(self) -> None:
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._processes: dict[Isolation, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, *, slots: int) -> None:
        """Start the threads that watch for runs to isolate."""
        for isolation, most in ((Isolation.GROUP, min(slots, _MOST_IN_GROUP)), (Isolation.ALONE, 1)):
            thread = threading.Thread(target=self._supervise, args=(isolation, most), name="isolation", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ask the processes to release their runs and to exit."""
        with self._lock:
            self._is_stopping.set()
            for process in self._processes.values():
                process.terminate()

    def wait(self) -> None:
        """Wait until all processes have ended, and kill processes that do not end in time.

        Otherwise, a process that hangs because of a run would keep its worker from ending. Other workers notice the
        death of a killed process and continue its runs.
        """
        ends_at = time.monotonic() + settings.WORKER_DRAIN_SECONDS + _EXIT_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        with self._lock:
            for process in self._processes.values():
                logger.warning("a process with isolated runs does not end; killing it", extra={"pid": process.pid})
                process.kill()

    def _supervise(self, isolation: Isolation, slots: int) -> None:
        while not self._is_stopping.wait(_POLL_SECONDS):
            try:
                if worker_loop.submit(in_db_thread(partial(_has_waiting, isolation))).result():
                    self._run(isolation, slots)
            except Exception:
                # The leases of the runs have expired, so the next poll finds them again.
                logger.warning("isolated runs cannot be continued; trying again", exc_info=True)

    def _run(self, isolation: Isolation, slots: int) -> None:
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "isolated_worker"]
        command += [f"--worker={os.getpid()}", f"--isolation={isolation.value}", f"--concurrency={slots}"]
        with self._lock:
            if self._is_stopping.is_set():
                return
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            self._processes[isolation] = process
        with process:
            name = process.stdout.readline().decode().strip() if process.stdout else ""
            code = process.wait()
        with self._lock:
            del self._processes[isolation]
        if code and not self._is_stopping.wait(_DOUBT_SECONDS):
            logger.warning("a process with isolated runs has died", extra={"owner": name, "code": code})
            if name:
                worker_loop.submit(in_db_thread(partial(_judge, name))).result()
            self._is_stopping.wait(_PAUSE_AFTER_DEATH_SECONDS)


def _has_waiting(isolation: Isolation) -> bool:
    with scope.every_team():
        return Response.objects.filter(
            has_expired(), status__in=RUNNING, isolation=isolation, attempt__lt=settings.BACKGROUND_ATTEMPTS
        ).exists()


def _judge(owner: str) -> None:
    """If a dead process had a single run, end the run. Otherwise, let each of its runs continue alone."""
    at = expired_before()
    with scope.every_team():
        runs = Response.objects.filter(lease_owner=owner, lease_until__gt=at, status__in=RUNNING)
        held = [*runs.values_list("id", "team_id")]
        if len(held) == 1:
            take(runs)
        else:
            runs.update(lease_until=at - _MARGIN, isolation=Isolation.ALONE)
    if len(held) == 1:
        ((response_id, team_id),) = held
        sweeper.end_culprit(response_id=response_id, team_id=team_id)
    open_calls.record_lost_calls()
