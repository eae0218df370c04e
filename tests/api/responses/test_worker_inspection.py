"""`manage.py celery inspect runs` lists the runs of each worker process."""

import json
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from core.clock import now
from tests.support.api import Api
from tests.support.background import ended
from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import ROOT
from tests.support.workers import running_worker

# Workers of tests deliver no webhooks.
KINDS = {"responses", "batches", "ingestions"}


def inspected() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the answer of each worker process, by node name."""
    command = [sys.executable, "manage.py", "celery", "inspect", "runs", "--json", "--timeout", "5"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    answers: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(result.stdout or "{}")
    return answers


@pytest.mark.slow
def test_every_worker_lists_its_runs_with_team_attempt_and_lease(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with running_worker() as first, running_worker() as second:
        response_id = api.create(model=script.model, input="Hi", background=True)["id"]
        gate.wait_until_reached()
        answers: dict[str, dict[str, list[dict[str, Any]]]] = {}
        asked_at = now()

        def both_answer() -> bool:
            nonlocal asked_at
            asked_at = now()
            answers.update(inspected())
            return all(any(f":{worker.pid}:" in node for node in answers) for worker in (first, second))

        eventually(both_answer, seconds=60)
        gate.open()
        ended(api, response_id)
    assert all(set(answer) == KINDS for answer in answers.values())
    (run,) = [run for answer in answers.values() for run in answer["responses"] if run["response"] == response_id]
    assert (run["team"], run["attempt"]) == (api.caller.team.pk, 1)
    assert datetime.fromisoformat(run["since"]) <= now()
    assert asked_at < datetime.fromisoformat(run["lease_until"])


@pytest.mark.slow
def test_a_celery_usage_error_is_reported_without_a_traceback() -> None:
    command = [sys.executable, "manage.py", "celery", "inspect", "bogus"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "bogus not recognized" in result.stderr
    assert "Traceback" not in result.stderr
