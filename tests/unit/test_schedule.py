"""Schedule of Celery beat."""

from django.conf import settings

from server.celery import app


def test_every_scheduled_task_is_registered() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert "conversations.tasks.sweep_files" in scheduled
    assert scheduled <= app.tasks.keys()
