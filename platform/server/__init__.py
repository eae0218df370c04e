"""Django project: settings, URLs, the ASGI application, Celery."""

# Imported here so that every process that has loaded the settings can call `.delay` of a shared task.
from server.celery import app as celery_app

__all__ = ["celery_app"]
