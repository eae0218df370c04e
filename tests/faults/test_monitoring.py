"""The dashboard and the alert rules in deploy/ use metrics and labels that running processes report."""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from launcher.address import any_free_port
from tests.support.api import Api, Caller
from tests.support.background import ended
from tests.support.chunks import chunk, text
from tests.support.limits import limit
from tests.support.machine_clock import machine_time
from tests.support.programs import need
from tests.support.search_engine import engine, search_server
from tests.support.stored_certificates import delete_certificates, store_certificate
from tests.support.targets import several_targets
from tests.support.upstream import Gate, Script, ScriptedUpstream, refusal, stream, whole
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import ROOT, running_web
from tests.support.webhooks import add_endpoint, running_receiver
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = PROMETHEUS / "alerts.yml"
METRIC = re.compile(r"\b((?:ors|process|python)_\w+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|without) \(([^)]*)\)")
# Added by Prometheus to every sample; the lines of a histogram have `le`, those of several web processes `process`.
ADDED = {"instance", "job", "le", "process"}


def expressions() -> dict[str, str]:
    """Return all expressions of the dashboard and the rules by their name."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in panels
        for target in panel.get("targets", ())
    }
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return found | {f"alert {rule['alert']}": rule["expr"] for group in groups for rule in group["rules"]}


def labels_by_metric(*urls: str) -> dict[str, set[str]]:
    """Return the labels of every sample that the processes report, by name."""
    found: dict[str, set[str]] = defaultdict(set)
    for url in urls:
        for family in text_string_to_metric_families(httpx2.get(url, timeout=PATIENCE).text):
            for sample in family.samples:
                found[sample.name] |= sample.labels.keys()
    return found


def unknown(expression: str, reported: dict[str, set[str]]) -> list[str]:
    """Return the metrics and labels of an expression that no process reports."""
    missing, known = [], set(ADDED)
    for name, matchers in METRIC.findall(expression):
        if name == "up":  # Prometheus' own
            continue
        known |= reported.get(name, set())
        if name not in reported:
            missing.append(name)
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        missing += [f"{name}{{{label}}}" for label in used - reported.get(name, set()) - ADDED]
    for listed in GROUPING.findall(expression):
        missing += [label for label in re.split(r",\s*", listed) if label not in known]
    return missing


@pytest.fixture
def beat_url(tmp_path: Path) -> Iterator[str]:
    """A scheduler for this test, which sends every task once after its start."""
    port = any_free_port()
    command = [sys.executable, "manage.py", "beat", "--metrics-port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "STATE_DIR": str(tmp_path)})
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.nightly
def test_dashboard_and_rules_use_existing_metrics(
    caller: Caller,
    script: Script,
    upstream: ScriptedUpstream,
    http: httpx2.Client,
    make_worker: MakeWorker,
    beat_url: str,
) -> None:
    worker_port = any_free_port()
    make_worker(METRICS_PORT=str(worker_port), WEBHOOK_CONCURRENCY="4")
    with running_web(EGRESS_ALLOW="127.0.0.1") as web, running_receiver() as receiver, search_server() as searched:
        api = Api(http, url=web.url, caller=caller)
        add_endpoint(caller, receiver.url)
        engine(caller.team, searched)
        open_target(api, upstream)
        use_everything(api, script)
        receiver.wait_for(1)
        urls = (f"{web.url}/metrics", f"http://127.0.0.1:{worker_port}/metrics", beat_url)
        used = expressions()

        def missing() -> dict[str, list[str]]:
            # The task that reads certificates may run at any time here, and finds none.
            store_certificate()
            reported = labels_by_metric(*urls)
            return {name: found for name, text in used.items() if (found := unknown(text, reported))}

        # The tasks of beat run within seconds.
        deadline = machine_time() + 60
        while missing() and machine_time() < deadline:
            time.sleep(0.5)
        assert missing() == {}
    delete_certificates()


def open_target(api: Api, upstream: ScriptedUpstream) -> None:
    """Let a target of a model with two targets fail, so that it is left out."""
    with several_targets(upstream) as targets:
        no_money = {"error": {"message": "No money.", "code": "insufficient_quota"}}
        targets.add().then(whole(no_money, status=402))
        targets.add().say("Hello")
        api.create(model=targets.name, input="Hi")


def use_everything(api: Api, script: Script) -> None:
    """Send requests that each add other samples."""
    script.say("Hello")
    api.create(model=script.model, input="Hi")
    script.say("Hello")
    ended(api, api.create(model=script.model, input="Hi", background=True)["id"])
    script.call(web_search='{"queries": ["cats"]}').say("They purr.")
    api.create(model=script.model, input="Do cats purr?", tools=[{"type": "web_search"}])
    script.always(refusal(500))
    assert api.post("/responses", {"model": script.model, "input": "Hi"}).status_code >= 500
    gate = Gate()
    script.always(stream(chunk(content="Hel"), gate, *text("lo")))
    with api.stream(model=script.model, input="Hi") as live:
        live.next()
    gate.open()
    limit(api.caller, requests_per_minute=1)
    eventually(lambda: api.post("/responses", {"model": script.model, "input": "Hi"}).status_code == 429)


# -- promtool ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["check", "config", "prometheus-compose.yml"],
        ["test", "rules", "alerts_test.yml"],
    ],
)
def test_promtool_accepts_the_rules(command: list[str]) -> None:
    promtool = need("promtool", package="prometheus")
    done = subprocess.run([promtool, *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_names_its_section_of_the_runbook() -> None:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        page, _, section = rule["annotations"]["runbook"].partition("#")
        sections = re.findall(r"^### (\w+)\n\n(\S.*)$", (ROOT / page).read_text(), re.MULTILINE)
        assert {name.lower(): name for name, _ in sections}.get(section) == rule["alert"]


def test_every_alert_is_tested() -> None:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    tests: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert {rule["alert"] for group in groups for rule in group["rules"]} - fired == set()
