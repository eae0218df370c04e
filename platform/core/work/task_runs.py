"""Latest runs of periodic tasks: metrics of the worker that executed them, and a note in Redis for the console."""

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import redis
from celery import states
from celery.signals import task_postrun, task_prerun
from django.conf import settings

from core.telemetry import metrics
from core.work.notifications import blocking_client

logger = logging.getLogger(__name__)
_KEY = "platform:tasks"
# Unix times by task: the first time when the scheduler noted it, and its latest success.
_SCHEDULED_KEY = "platform:tasks:scheduled"
_SUCCEEDED_KEY = "platform:tasks:succeeded"
# More than the number of tasks that run at the same time. Tasks whose end is never reported must not fill the memory.
_MAX_STARTED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """Latest run of a task. `ended_at` is a Unix time."""

    task: str
    ended_at: float
    seconds: float
    succeeded: bool


_started: dict[str, float] = {}
_client = cache(blocking_client)


def watch() -> None:
    """Record the tasks that this process executes from now on."""
    task_prerun.connect(_begin, weak=False)
    task_postrun.connect(_end, weak=False)


def latest() -> dict[str, TaskRun] | None:
    """Return the latest run of each task by its name; None if Redis cannot be reached."""
    try:
        notes: Any = _client(settings.REDIS_URL).hvals(_KEY)
    except redis.RedisError:
        return None
    runs = [TaskRun(**json.loads(note)) for note in notes]
    return {run.task: run for run in runs}


def note_schedule(tasks: Iterable[str]) -> None:
    """Note since when these tasks are scheduled, so that a task that never runs has an age as well."""
    try:
        with _client(settings.REDIS_URL).pipeline(transaction=False) as pipeline:
            for task in tasks:
                pipeline.hsetnx(_SCHEDULED_KEY, task, time.time())
            pipeline.execute()
    except redis.RedisError as error:
        logger.warning("the schedule of the tasks cannot be noted: %s", error)


def ages(tasks: Iterable[str]) -> dict[str, float]:
    """Return the seconds since each of these tasks has succeeded, or since it is scheduled if it never did.

    Tasks that no scheduler has noted are left out. Raises `RedisError`.
    """
    client = _client(settings.REDIS_URL)
    scheduled: Any = client.hgetall(_SCHEDULED_KEY)
    succeeded: Any = client.hgetall(_SUCCEEDED_KEY)
    since = {name.decode(): float(at) for name, at in {**scheduled, **succeeded}.items()}
    return {task: max(0.0, time.time() - since[task]) for task in tasks if task in since}


def _begin(task_id: str = "", **_: Any) -> None:
    if len(_started) >= _MAX_STARTED:
        _started.clear()
    _started[task_id] = time.monotonic()


def _end(task_id: str = "", task: Any = None, state: str = "", **_: Any) -> None:
    name = str(task.name)
    seconds = time.monotonic() - _started.pop(task_id, time.monotonic())
    succeeded, at = state == states.SUCCESS, time.time()
    metrics.TASKS.labels(name, "succeeded" if succeeded else "failed").inc()
    metrics.TASK_DURATION.labels(name).observe(seconds)
    if succeeded:
        metrics.TASK_SUCCEEDED.labels(name).set(at)
    run = TaskRun(task=name, ended_at=at, seconds=round(seconds, 3), succeeded=succeeded)
    try:
        client = _client(settings.REDIS_URL)
        client.hset(_KEY, name, json.dumps(asdict(run)))
        if succeeded:
            client.hset(_SUCCEEDED_KEY, name, at)
    except redis.RedisError as error:
        logger.warning("the end of a task cannot be noted: %s", error)
