"""The project: settings, URLs, the ASGI application, Celery. Importing it loads Celery, so that `.delay` works."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
