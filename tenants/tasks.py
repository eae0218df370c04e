"""Celery tasks. Their schedule is in the settings."""

from celery import shared_task

from tenants import audit_seals, notifications


@shared_task(name="tenants.tasks.seal_audit_log", expires=60)
def seal_audit_log() -> int:
    """Seal the lines of the audit log that have settled."""
    return audit_seals.seal_pending_lines()


@shared_task(name="tenants.tasks.sweep_notifications", expires=300)
def sweep_notifications() -> int:
    """Give up late mails, and delete old ones and old notifications."""
    return notifications.sweep()


@shared_task(name="tenants.tasks.notify_of_expiring_keys", expires=3600)
def notify_of_expiring_keys() -> int:
    """Notify teams of API keys that will expire soon."""
    return notifications.notify_of_expiring_keys()
