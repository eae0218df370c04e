"""`/metrics`: counts of requests, runs and rejections, and access to it."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from launcher.address import any_free_port
from tenants import scope
from tenants.models import Model, Upstream
from tests.support.api import Api, Caller
from tests.support.chunks import chunk, text
from tests.support.metrics import Samples, read_metrics
from tests.support.sampling import rest_at_night
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import MakeWorker

TOKEN = "metrics-token-0123456789abcdefghij"


@pytest.fixture
def samples(web: WebProcess) -> Samples:
    """The metrics at the beginning of the test, to compare with."""
    return Samples(f"{web.url}/metrics")


@pytest.mark.slow
def test_a_response_is_counted_with_its_turn_and_tokens(api: Api, script: Script, samples: Samples) -> None:
    script.say("Hello")
    api.create(model=script.model, input="Hi")
    # The upstream of the tests serves any model by a wildcard.
    model, posted = "other", {"route": "/v1/responses", "method": "POST"}
    eventually(lambda: samples.added("ors_http_requests_total", **posted, status_class="2xx") == 1)
    eventually(lambda: samples.added("ors_http_request_duration_seconds_count", **posted) == 1)
    eventually(lambda: samples.added("ors_responses_total", model=model, mode="json", status="completed") == 1)
    eventually(lambda: samples.added("ors_response_duration_seconds_count", mode="json") == 1)
    eventually(lambda: samples.added("ors_turns_total", model=model) == 1)
    eventually(lambda: samples.added("ors_tokens_total", model=model, kind="input") > 0)
    eventually(lambda: samples.added("ors_tokens_total", model=model, kind="output") > 0)
    eventually(lambda: samples.added("ors_upstream_requests_total", code="200") == 1)
    eventually(lambda: samples.added("ors_group_commit_changes_count") >= 2)
    eventually(lambda: samples.added("ors_db_thread_wait_seconds_count") >= 1)


@pytest.mark.slow
def test_an_open_stream_is_counted_until_its_end(api: Api, script: Script, samples: Samples) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with api.stream(model=script.model, input="Hi") as live:
        live.next()
        eventually(lambda: samples.now("ors_open_streams", kind="sse") >= 1)
        eventually(lambda: samples.now("ors_active_runs") >= 1)
        gate.open()
        live.rest()
    eventually(lambda: samples.now("ors_open_streams", kind="sse") == 0)
    eventually(lambda: samples.added("ors_responses_total", model="other", mode="stream", status="completed") == 1)
    eventually(lambda: samples.added("ors_time_to_first_token_seconds_count", model="other") == 1)


@pytest.mark.slow
def test_a_failing_upstream_is_down_until_it_answers(api: Api, script: Script, samples: Samples) -> None:
    script.always(refusal(500))
    api.post("/responses", {"model": script.model, "input": "Hi"})
    eventually(lambda: samples.added("ors_upstream_errors_total", reason="http_5xx") >= 1)
    eventually(lambda: samples.now("ors_upstream_up", upstream="scripted") == 0)
    script.always(stream(*text("Hello")))
    api.create(model=script.model, input="Hi")
    eventually(lambda: samples.now("ors_upstream_up", upstream="scripted") == 1)


@pytest.mark.slow
def test_errors_are_counted_by_code_and_unknown_paths_are_counted_as_other(
    api: Api, web: WebProcess, http: httpx2.Client, samples: Samples
) -> None:
    api.post("/responses", {"model": "demo", "input": "Hi", "temperatur": 1})
    eventually(lambda: samples.added("ors_rejected_requests_total", reason="unknown_parameter") == 1)
    http.get(f"{web.url}/v1/secret-path-1", headers={"authorization": "Bearer sk-wrong"})
    http.get(f"{web.url}/secret-path-2")
    http.request("BREW", f"{web.url}/livez")
    api.get("/responses/resp_0")
    read = "/v1/responses/{response_id}"
    eventually(lambda: samples.added("ors_http_requests_total", route=read, method="GET") == 1)
    eventually(lambda: samples.added("ors_http_requests_total", route="other") >= 2)
    exposed = http.get(f"{web.url}/metrics").text
    assert "secret-path" not in exposed
    assert "resp_0" not in exposed
    assert "BREW" not in exposed


@pytest.mark.slow
def test_configured_models_have_a_label(script: Script, http: httpx2.Client, caller: Caller) -> None:
    with scope.every_team():
        server = Upstream.objects.get(name="scripted")
        alias = Model.objects.create(name=f"alias-of-{script.model}", upstream=server, upstream_model=script.model)
    script.always(stream(*text("Hello")))
    # A separate process, because only the first 200 models of a process have labels and other tests add many.
    with running_web() as process:
        samples = Samples(f"{process.url}/metrics")
        api = Api(http, url=process.url, caller=caller)
        api.create(model=alias.name, input="Hi")
        api.create(model=script.model, input="Hi")
        eventually(lambda: samples.added("ors_responses_total", model=alias.name) == 1)
        eventually(lambda: samples.added("ors_responses_total", model="other") == 1)
        assert f'"{script.model}"' not in http.get(f"{process.url}/metrics").text


@pytest.mark.slow
def test_no_label_names_a_key_a_team_or_a_user(
    api: Api, caller: Caller, script: Script, web: WebProcess, http: httpx2.Client
) -> None:
    script.say("Hello")
    made = api.create(model=script.model, input="Hi", safety_identifier="user-of-metrics")
    exposed = http.get(f"{web.url}/metrics").text
    for secret in (caller.team.pk, caller.secret, made["id"], "user-of-metrics"):
        assert secret not in exposed


@pytest.mark.slow
def test_teams_are_labels_only_with_the_setting(script: Script, http: httpx2.Client, caller: Caller) -> None:
    script.say("Hello")
    with running_web(METRICS_TEAM_LABEL="1") as process:
        samples = Samples(f"{process.url}/metrics")
        Api(http, url=process.url, caller=caller).create(model=script.model, input="Hi")
        eventually(lambda: samples.added("ors_team_responses_total", team=caller.team.pk, status="completed") == 1)
        eventually(lambda: samples.added("ors_team_tokens_total", team=caller.team.pk, kind="output") > 0)


@pytest.mark.slow
def test_metrics_cover_queues_and_servers(web: WebProcess) -> None:
    found = read_metrics(f"{web.url}/metrics")
    queues = {labels["queue"] for name, labels, _ in found if name == "ors_queue_depth"}
    assert queues == {"background", "batches", "webhooks", "mail", "vector_store_files"}
    up = {labels["dependency"]: value for name, labels, value in found if name == "ors_dependency_up"}
    assert up == {"postgresql": 1, "redis": 1}
    assert {labels["kind"] for name, labels, _ in found if name == "ors_processes"} >= {"web", "worker", "beat"}


# -- access ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Forwarded", "Via"])
def test_metrics_without_a_token_are_readable_from_this_machine_only(
    web: WebProcess, http: httpx2.Client, header: str
) -> None:
    assert http.get(f"{web.url}/metrics").status_code == 200
    forwarded = http.get(f"{web.url}/metrics", headers={header: "203.0.113.9"})
    assert (forwarded.status_code, "METRICS_TOKEN" in forwarded.text) == (403, True)


@pytest.mark.nightly
@pytest.mark.slow
def test_metrics_behind_a_proxy_require_a_token(http: httpx2.Client) -> None:
    # As from a proxy on the same machine that adds no header.
    with running_web(TRUSTED_PROXIES="1") as process:
        refused = http.get(f"{process.url}/metrics")
        assert (refused.status_code, "METRICS_TOKEN" in refused.text) == (403, True)
        assert "ors_" not in refused.text
    with running_web(TRUSTED_PROXIES="1", METRICS_TOKEN=TOKEN) as process:
        answer = http.get(f"{process.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, "ors_build_info" in answer.text) == (200, True)


@pytest.fixture(scope="module")
def with_token() -> Iterator[WebProcess]:
    with running_web(METRICS_TOKEN=TOKEN) as process:
        yield process


@pytest.mark.slow
def test_a_configured_token_is_required(with_token: WebProcess, http: httpx2.Client) -> None:
    url = f"{with_token.url}/metrics"
    assert http.get(url).status_code == 401
    assert http.get(url, headers={"authorization": "Bearer wrong"}).status_code == 401
    answer = http.get(url, headers={"authorization": f"Bearer {TOKEN}", "x-forwarded-for": "203.0.113.9"})
    assert (answer.status_code, "ors_build_info" in answer.text) == (200, True)


@pytest.mark.slow
@pytest.mark.parametrize("processes", rest_at_night(["2", "1"], first=1))
def test_web_processes_serve_their_metrics_on_a_separate_port(processes: str, http: httpx2.Client) -> None:
    port = any_free_port()
    with running_web(processes=processes, METRICS_PORT=str(port)) as process:
        assert http.get(f"{process.url}/metrics").status_code == 404
        url = f"http://127.0.0.1:{port}/metrics"
        eventually(lambda: len(re.findall(r"^ors_build_info\{.*\} 1", http.get(url).text, re.M)) == int(processes))
        assert "ors_queue_depth" in http.get(url).text
        assert http.get(f"http://127.0.0.1:{port}/").status_code == 404


@pytest.mark.slow
def test_a_worker_serves_its_metrics(make_worker: MakeWorker, api: Api, script: Script) -> None:
    port = any_free_port()
    make_worker(METRICS_PORT=str(port), METRICS_TOKEN=TOKEN)
    url = f"http://127.0.0.1:{port}/metrics"
    assert httpx2.get(url, timeout=PATIENCE).status_code == 401
    samples = Samples(url, token=TOKEN)
    script.always(stream(*text("Hello")))
    eventually(lambda: samples.now("ors_db_pool_size") >= 1)
    api.create(model=script.model, input="Hi", background=True)
    eventually(lambda: samples.added("ors_responses_total", model="other", mode="background") == 1)
