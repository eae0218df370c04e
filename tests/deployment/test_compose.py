"""compose.yaml is valid, gives each service only its own secrets, and starts with the output of `generate_secrets`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.commands import SUMMARIES
from tests.support.compose import FILE, ROOT, Service, read_compose
from tests.support.draining import longest_stop

OURS = {"database", "migrate", "web", "worker", "beat", "sandbox"}
APPLICATION_SECRETS = {"SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS"}


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    command = [sys.executable, "manage.py", "generate_secrets"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return read_compose(dict(line.split("=", 1) for line in printed.splitlines()))


@pytest.mark.slow
def test_the_compose_file_follows_the_compose_specification() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_secrets_are_required() -> None:
    with pytest.raises(KeyError, match="PASSWORD"):
        read_compose({})


def test_every_service_is_hardened_and_checked(services: dict[str, Service]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "healthcheck" in service or service["restart"] == "no", name
        assert name == "caddy" or not service.get("cap_add"), name
        assert name == "caddy" or service["user"].partition(":")[0] not in {"", "0", "root"}, name
        assert name == "sandbox" or not any("unconfined" in option for option in service["security_opt"]), name


def test_the_processes_run_commands_that_exist(services: dict[str, Service]) -> None:
    assert {name for name, service in services.items() if "build" in service} == OURS
    for name in OURS:
        assert services[name]["command"][0] in SUMMARIES
        check = services[name].get("healthcheck", {}).get("test")
        assert check is None or check[1:] == ["/app/.venv/bin/python", "manage.py", "healthcheck", name]


def test_each_process_gets_only_the_secrets_that_it_needs(services: dict[str, Service]) -> None:
    environments = {name: set(services[name]["environment"]) for name in OURS}
    assert {name for name, given in environments.items() if "DATABASE_ADMIN_URL" in given} == {"database"}
    assert {name for name, given in environments.items() if "DATABASE_OWNER_URL" in given} == {"database", "migrate"}
    for name in ("database", "sandbox"):
        assert not environments[name] & {*APPLICATION_SECRETS, "REDIS_URL"}
    assert all(one.startswith("SANDBOX_") for one in environments["sandbox"])


def test_the_sandbox_has_no_network_and_the_database_is_not_reachable_from_outside(
    services: dict[str, Service],
) -> None:
    assert services["sandbox"]["network_mode"] == "none"
    for name in ("postgres", "valkey"):
        assert services[name]["networks"] == ["data"]
        assert "ports" not in services[name]
    assert services["web"]["ports"] == ["127.0.0.1:8000:8000"]


def test_several_workers_share_no_port(services: dict[str, Service]) -> None:
    assert int(services["worker"]["deploy"]["replicas"]) > 1
    assert [name for name in OURS if "ports" in services[name]] == ["web"]


def test_prometheus_reads_the_metrics_of_every_process(services: dict[str, Service]) -> None:
    prometheus = services["prometheus"]
    mounted = dict(volume.split(":")[:2] for volume in prometheus["volumes"])
    (source,) = (path for path, target in mounted.items() if target == "/etc/prometheus/prometheus.yml")
    jobs = yaml.safe_load((ROOT / source).read_text())["scrape_configs"]
    (own,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["rule_files"]
    assert mounted[f"./deploy/prometheus/{own}"] == f"/etc/prometheus/{own}"
    # The alerts select the processes by the names of the jobs.
    targets = {job["job_name"]: (one["names"], one["port"]) for job in jobs for one in job["dns_sd_configs"]}
    expected = {f"ors-{name}": ([name], 9464) for name in ("web", "worker", "beat")}
    assert targets == expected
    for name in ("web", "worker", "beat"):
        environment = services[name]["environment"]
        assert (environment["METRICS_PORT"], environment["METRICS_HOST"]) == (9464, "0.0.0.0")
        assert set(services[name]["networks"]) & set(prometheus["networks"])


def test_variables_of_the_compose_file_are_documented(services: dict[str, Service]) -> None:
    table = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z][A-Z_0-9]*)`", table, re.MULTILINE))
    used = {name for service in OURS for name in services[service]["environment"]}
    assert used <= documented


@pytest.mark.parametrize("name", ["web", "worker"])
def test_services_are_not_killed_while_they_drain(services: dict[str, Service], name: str) -> None:
    seconds = re.fullmatch(r"(\d+)s", services[name]["stop_grace_period"])
    assert seconds
    assert int(seconds[1]) >= longest_stop(name)
