"""Celery tasks, which only call functions that work without Celery. Their schedule is in the settings.

They keep the names that they had in version 0.2.0, so that workers of both versions can run them.
"""

from celery import shared_task

from billing import budget_alerts
from containers import services as containers
from core.work import work_queue
from deliveries.outbox import queue as outbox
from idempotency import store as idempotency
from limits import refused_requests
from limits import sweeper as limits_sweeper
from responses import search_index
from responses.lifecycle import blocked, partitions, sweeper
from responses.lifecycle.decisions import expiry
from responses.lifecycle.worker import Dispatcher
from responses.rollups import aggregate
from responses.runs import open_calls
from responses.runs.decisions import notices
from responses.webhooks.models import WebhookDelivery
from server import certificates
from tools.vectors import services as vector_stores
from tools.vectors.ingestion import Ingestion


@shared_task(name="responses.tasks.sweep_dead_runs", expires=30)
def sweep_dead_runs() -> int:
    """End the runs of dead processes, and record the other calls of these processes."""
    open_calls.record_lost_calls()
    return sweeper.sweep_dead_runs()


@shared_task(name="responses.tasks.sweep_decisions", expires=10)
def sweep_decisions() -> int:
    """Expire decisions that nobody has made in time, and announce those whose worker died before it announced them."""
    notices.announce_requests()
    return expiry.expire_decisions()


@shared_task(name="responses.tasks.sweep_limits", expires=30)
def sweep_limits() -> int:
    """Delete reservations of dead processes and old refusals, and rebuild limits that count ended requests."""
    sweeper.drop_lost_reservations()
    refused_requests.delete_old()
    return limits_sweeper.sweep()


@shared_task(name="responses.tasks.wake_blocked_runs", expires=5)
def wake_blocked_runs() -> int:
    """Allow workers to claim background runs and batch lines whose limits have room again."""
    return blocked.wake()


@shared_task(name="responses.tasks.drop_expired_logs", expires=30)
def drop_expired_logs() -> int:
    """Drop event logs past their retention."""
    sweeper.drop_old_marks()
    return sweeper.drop_expired_logs()


@shared_task(name="responses.tasks.maintain_partitions", expires=3600)
def maintain_partitions() -> int:
    """Create the partitions of the next months, and drop those past their retention."""
    return partitions.create_partitions() + len(partitions.drop_old_partitions())


@shared_task(name="responses.tasks.sweep_idempotency_keys", expires=30)
def sweep_idempotency_keys() -> int:
    """Delete idempotency keys past their retention, and answers that must not be stored."""
    return idempotency.sweep()


@shared_task(name="responses.tasks.sweep_webhooks", expires=300)
def sweep_webhooks() -> int:
    """Give up late webhook deliveries and delete old ones."""
    return outbox.sweep(WebhookDelivery)


@shared_task(name="responses.tasks.run_background", expires=10)
def run_background() -> None:
    """Notify this process's dispatcher that a response is queued."""
    work_queue.wake(Dispatcher.kind)


@shared_task(name="responses.tasks.ingest_files", expires=60)
def ingest_files() -> None:
    """Notify this process that files of vector stores are waiting to be ingested."""
    work_queue.wake(Ingestion.kind)


@shared_task(name="responses.tasks.empty_expired_stores", expires=300)
def empty_expired_stores() -> int:
    """Delete the passages of expired vector stores."""
    return vector_stores.clear_expired_stores()


@shared_task(name="responses.tasks.sweep_containers", expires=300)
def delete_old_containers() -> int:
    """Delete the rows of containers that ended long ago."""
    return containers.delete_old_containers()


@shared_task(name="responses.tasks.roll_up", expires=60)
def roll_up() -> int:
    """Add new rows to the hourly sums, and older rows that have ended since the last call."""
    return aggregate.roll_up().steps


@shared_task(name="responses.tasks.send_budget_alerts", expires=60)
def send_budget_alerts() -> int:
    """Send an alert for every newly reached percentage of a budget."""
    return budget_alerts.send_alerts()


@shared_task(name="server.tasks.check_certificates", expires=3600)
def check_certificates() -> int:
    """Read when the TLS certificates of the public address, upstreams and connectors expire."""
    return certificates.check()


@shared_task(name="responses.tasks.collect_search_texts", expires=30)
def collect_search_texts() -> int:
    """Collect texts for full-text search, and remove those of teams that have disabled it."""
    search_index.remove_excluded_teams()
    return search_index.collect()
