"""End the leases of processes that have died, so that others continue their work before the leases expire."""

import logging
from collections.abc import Collection
from datetime import timedelta
from functools import reduce
from operator import or_

from django.db.models import Q, Value
from django.db.models.functions import Greatest

from core.work import work_queue
from core.work.leases import expired_before
from responses.lifecycle import sweeper
from responses.lifecycle.worker import Dispatcher
from responses.models import RUNNING, Isolation, Response
from responses.models.batches import OPEN_BATCHES, Batch, BatchLine, LineState
from responses.runs import open_calls
from tenants import scope
from tenants.models.limits import Reservation

logger = logging.getLogger(__name__)
_MARGIN = timedelta(seconds=1)


def release(names: Collection[str]) -> int:
    """End the leases of dead processes with these names (the last part of `process_name`). Return the number of leases.

    Afterwards, workers continue the lines of batches. They continue background runs in isolated processes, because one
    of these runs may have crashed its process. This function also ends the foreground runs and records lost calls.
    """
    at = expired_before()
    owned = reduce(or_, (Q(lease_owner__endswith=f":{name}") for name in names)) & Q(lease_until__gt=at)
    with scope.every_team():
        released = Response.objects.filter(owned, status__in=RUNNING).update(
            lease_until=at - _MARGIN, isolation=Greatest("isolation", Value(Isolation.GROUP))
        )
        batches = Batch.objects.filter(status__in=OPEN_BATCHES)
        # Not a join: a join was still running after 19 minutes when the statistics were older than a batch of 50,000
        # lines.
        lines = BatchLine.objects.filter(batch_id__in=[*batches.values_list("pk", flat=True)], state=LineState.RUNNING)
        released += sum(
            rows.filter(owned).update(lease_until=at - _MARGIN)
            for rows in (
                lines,
                batches,
                Reservation.objects.filter(details__isnull=False),
            )
        )
    if released:
        logger.warning(
            "processes have died; their leases were ended", extra={"processes": [*names], "leases": released}
        )
        work_queue.wake(Dispatcher.kind)
    # Done even if another process has ended the leases: its sweep skipped the rows that this process had locked while
    # it waited for the other process.
    open_calls.record_lost_calls()
    sweeper.sweep_dead_runs()
    return released
