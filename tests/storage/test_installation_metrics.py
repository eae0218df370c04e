"""Metrics of the installation that alerts about upkeep use: periodic tasks, backups, disks and certificates."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from celery import states
from django.conf import settings as django_settings
from django.db import connection
from pytest_django import Settings

from core.clock import now
from core.work import task_runs
from core.work.notifications import blocking_client
from server import certificates
from server.celery import app
from server.metrics.system_metrics import DiskMetrics, SystemMetrics
from tenants import services
from tenants.models import Connector, LastBackup, Upstream
from tests.support.certificates import self_signed


def samples(name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its labels."""
    metrics = {metric.name: metric for metric in [*SystemMetrics().collect(), *DiskMetrics().collect()]}
    return {(*sample.labels.values(),): sample.value for sample in metrics[name].samples}


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def forgotten_tasks(database: None) -> None:
    """Redis without notes about tasks, as after the loss of its data."""
    with blocking_client(django_settings.REDIS_URL) as client:
        keys = [*client.scan_iter("platform:tasks*")]
        if keys:
            client.delete(*keys)


def end_task(name: str, state: str) -> None:
    app.loader.import_default_modules()
    task_runs._end(task_id="id", task=app.tasks[name], state=state)


def test_each_scheduled_task_has_its_own_interval(database: None) -> None:
    intervals = samples("ors_task_interval_seconds")
    schedule = {(entry["task"],): entry["schedule"] for entry in django_settings.CELERY_BEAT_SCHEDULE.values()}
    assert intervals == schedule
    assert len({*intervals.values()}) > 3


def test_the_age_of_a_task_begins_with_its_latest_success(forgotten_tasks: None) -> None:
    succeeding, failing = "responses.tasks.roll_up", "responses.tasks.sweep_limits"
    never = "responses.tasks.ingest_files"
    task_runs.note_schedule([never])
    with blocking_client(django_settings.REDIS_URL) as client:
        client.hset("platform:tasks:scheduled", never, now().timestamp() - 5000)
        client.hset("platform:tasks:succeeded", failing, now().timestamp() - 900)
    end_task(succeeding, states.SUCCESS)
    end_task(failing, states.FAILURE)
    # The scheduler starts again, which does not make the task younger.
    task_runs.note_schedule([never])
    ages = samples("ors_task_age_seconds")
    assert ages[succeeding,] < 60
    assert 900 <= ages[failing,] < 960
    assert 5000 <= ages[never,] < 5060


# -- backups and disks -------------------------------------------------------------------------------------------------


def test_without_a_backup_the_age_is_that_of_the_installation(database: None) -> None:
    LastBackup.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(applied) FROM django_migrations")
        (installed,) = cursor.fetchone()
    age = samples("ors_backup_age_seconds")[()]
    assert abs(age - (now() - installed).total_seconds()) < 60


def test_the_age_of_a_backup_begins_with_its_state(database: None) -> None:
    LastBackup.objects.update_or_create(id=1, defaults={"state_of": now() - timedelta(hours=40)})
    try:
        assert 40 * 3600 <= samples("ors_backup_age_seconds")[()] < 40 * 3600 + 60
    finally:
        LastBackup.objects.all().delete()


def test_the_disks_that_a_process_writes_to_are_reported(settings: Settings, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path
    metrics = {metric.name: metric for metric in DiskMetrics().collect()}
    size, free = (
        {sample.labels["folder"]: sample.value for sample in metrics[name].samples}
        for name in ("ors_disk_size_bytes", "ors_disk_free_bytes")
    )
    assert size.keys() == free.keys() == {"state", "temporary"}
    assert 0 < free["state"] <= size["state"]


def test_a_folder_that_does_not_exist_has_no_disk(settings: Settings, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path / "missing"
    [size, _] = DiskMetrics().collect()
    assert [sample.labels["folder"] for sample in size.samples] == ["temporary"]


# -- certificates ------------------------------------------------------------------------------------------------------


@contextmanager
def https_server(folder: Path) -> Iterator[int]:
    """Start an https server with a self-signed certificate, which is valid for a day, and provide its port."""
    certificate, key = self_signed(folder, "localhost")
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_the_expiry_of_certificates_is_reported(database: None, settings: Settings, tmp_path: Path) -> None:
    with https_server(tmp_path) as port:
        settings.PUBLIC_URL = f"https://127.0.0.1:{port}"
        added = [
            services.add_upstream(name="with-tls", base_url=f"https://localhost:{port}/v1"),
            services.add_upstream(name="without-tls", base_url=f"http://localhost:{port}/v1"),
            services.add_upstream(name="closed", base_url="https://127.0.0.1:9/v1"),
            Connector.objects.create(name="wiki", title="Wiki", url=f"https://localhost:{port}/mcp"),
        ]
        try:
            assert certificates.check() == 3
        finally:
            Upstream.objects.filter(name__in=("with-tls", "without-tls", "closed")).delete()
            Connector.objects.filter(pk=added[-1].pk).delete()
    expiries = samples("ors_certificate_expiry_timestamp_seconds")
    with blocking_client(django_settings.REDIS_URL) as client:
        client.delete("platform:certificates")
    assert {*expiries} == {
        ("public address", f"127.0.0.1:{port}"),
        ("upstream", f"localhost:{port}"),
        ("connector", f"localhost:{port}"),
    }
    tomorrow = (now() + timedelta(days=1)).timestamp()
    assert all(abs(expiry - tomorrow) < 120 for expiry in expiries.values())
