"""Celery tasks. They keep the names that version 0.2.0 gave them; their schedule is in the settings."""

from celery import shared_task

from deliveries import notifications


@shared_task(name="tenants.tasks.sweep_notifications", expires=300)
def sweep_notifications() -> int:
    """Give up late mails, and delete old mails and notifications."""
    return notifications.sweep()


@shared_task(name="tenants.tasks.notify_of_expiring_keys", expires=3600)
def notify_of_expiring_keys() -> int:
    """Notify teams of API keys that will expire soon."""
    return notifications.notify_of_expiring_keys()
