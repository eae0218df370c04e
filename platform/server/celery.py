"""Celery application shared by workers, the scheduler and every call of `.delay`."""

from typing import Any

from celery import Celery
from celery.worker.control import inspect_command

from core.work import work_queue
from server import env
from server.broker import PatientAmqp

# Django's checks import the whole console, which neither workers nor the scheduler need.
env.set_default("CELERY_SKIP_CHECKS", "1")
app = Celery("platform", amqp=PatientAmqp)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["conversations", "deliveries", "server", "tenants"])


@inspect_command()
def runs(state: Any) -> dict[str, list[dict[str, Any]]]:
    """Show the responses, batches, deliveries and ingestions that each worker process is running."""
    return work_queue.active()
