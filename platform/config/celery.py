"""Celery application shared by workers, the scheduler and every call of `.delay`."""

from celery import Celery

app = Celery("platform")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tenants", "conversations", "responses"])
