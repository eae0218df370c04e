"""Limits of the lines of batches, which wait for capacity instead of failing."""

import pytest

from responses.models.batches import BatchLine
from tenants import scope
from tests.support.api import Api
from tests.support.batches import answers, asked, ended, line
from tests.support.chunks import text
from tests.support.limits import limit
from tests.support.upstream import Script, stream
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.slow


def test_lines_wait_for_a_free_slot(api: Api, script: Script, worker: WorkerProcess) -> None:
    limit(api.caller, concurrent_runs=1)
    script.always(stream(*text("Hello")))
    batch = ended(api, asked(api, *(line(name, model=script.model, input="Hi") for name in "abcd"))["id"])
    assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    assert len(script.received) == 4
    assert len(answers(api, batch["output_file_id"])) == 4


def test_waiting_for_a_rate_limit_does_not_count_as_an_attempt(api: Api, script: Script, worker: WorkerProcess) -> None:
    # Uploading the file and creating the batch count as requests as well.
    limit(api.caller, of="team", requests_per_minute=3)
    script.always(stream(*text("Hello")))
    asked(api, *(line(name, model=script.model, input="Hi") for name in "ab"))

    def waiting() -> list[BatchLine]:
        with scope.team(api.caller.team.pk):
            return list(BatchLine.objects.filter(batch__team=api.caller.team, not_before__isnull=False))

    assert all(one.attempt == 0 for one in eventually(waiting))
