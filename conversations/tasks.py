"""Celery tasks. Their schedule is in the settings."""

from celery import shared_task

from conversations.files import storage


@shared_task(name="conversations.tasks.sweep_files", expires=300)
def sweep_files() -> int:
    """Remove expired, deleted and incomplete files."""
    return storage.sweep_files()
