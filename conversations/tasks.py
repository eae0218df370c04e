"""Celery's side: each task is one call. Beat's schedule is in the settings."""

from celery import shared_task

from conversations.files import storage


@shared_task(name="conversations.tasks.sweep_files", expires=300)
def sweep_files() -> int:
    """Remove files that have expired, were deleted or never became complete."""
    return storage.sweep_files()
