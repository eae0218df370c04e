"""Idle connections: none is closed, and requests are served beside them.

`python -m benchmarks idle-connections` measures the same with 10,000.
"""

import httpx2
import pytest

from benchmarks.idle_connections import closed, idle_connections
from benchmarks.load import Target
from tests.support.api import Api, Caller
from tests.support.upstream import Script
from tests.support.web import running_web

pytestmark = pytest.mark.slow

SILENT, KEPT = 300, 300


@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_requests_are_served_beside_idle_connections(
    server: str, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    with running_web(server=server) as process:
        api = Api(http, url=process.url, caller=caller)
        target = Target(name=server, url=process.url, pid=process.pid, api="responses", headers=api.headers)
        with idle_connections(target, silent=SILENT, kept=KEPT) as peers:
            for number in range(5):
                script.say(str(number))
                assert api.create(model=script.model, input="Hi")["status"] == "completed"
            assert (len(peers), closed(peers)) == (SILENT + KEPT, 0)
