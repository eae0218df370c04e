"""The connection of workers and schedulers to Redis."""

import pytest

from launcher.address import any_free_port
from server.celery import app


class _EnoughError(Exception):
    pass


@pytest.mark.nightly
@pytest.mark.slow
def test_a_lost_connection_is_retried_every_few_seconds() -> None:
    waits: list[float] = []

    def note(_: Exception, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise _EnoughError

    with pytest.raises(_EnoughError):
        app.connection_for_read(f"redis://127.0.0.1:{any_free_port()}").ensure_connection(
            note, app.conf.broker_connection_max_retries
        )
    assert max(waits) <= 4
    assert app.conf.broker_connection_max_retries is None
