"""Celery tasks. Their schedule is in the settings."""

from celery import shared_task

from tenants import audit_seals


@shared_task(name="tenants.tasks.seal_audit_log", expires=60)
def seal_audit_log() -> int:
    """Seal the lines of the audit log that have settled."""
    return audit_seals.seal_pending_lines()
