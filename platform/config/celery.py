"""The Celery application that workers, beat and every `.delay` share."""

from celery import Celery

app = Celery("platform")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tenants", "conversations", "responses"])
