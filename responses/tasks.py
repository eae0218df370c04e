"""Celery's side: each task is one call. Beat's schedule is in the settings."""

from celery import shared_task

from responses import upkeep


@shared_task(name="responses.tasks.sweep_dead_runs", expires=30)
def sweep_dead_runs() -> int:
    """End the runs whose process died."""
    return upkeep.sweep_dead_runs()


@shared_task(name="responses.tasks.drop_expired_logs", expires=300)
def drop_expired_logs() -> int:
    """Drop event logs past their retention."""
    return upkeep.drop_expired_logs()
