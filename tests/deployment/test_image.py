"""The image that the Dockerfile describes: every process of compose.yaml starts from it and does its work.

The instructions are executed in an empty Debian (`tests/support/image.py`), which needs root and packages from Debian
and the package index. The commands, variables and volumes are those of compose.yaml; PostgreSQL and Valkey are those
of the test run.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from launcher import postgres
from launcher.address import any_free_port, is_free
from launcher.testing import PrivateServers
from tests.support.compose import read_compose
from tests.support.image import ROOT, Image, build, make_directory
from tests.support.otlp import Collector, running_collector
from tests.support.programs import skip
from tests.support.waiting import HANGS_AFTER, eventually

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ENTRY_POINT = ["/app/.venv/bin/python", "/app/manage.py"]
CODE = "import os; print(6 * 7, os.listdir('/app') if os.path.exists('/app') else 'isolated')"


class Installation:
    """The services of compose.yaml, as processes from the image."""

    def __init__(self, image: Image, directory: Path, servers: PrivateServers, collector: Collector) -> None:
        self._image, self._directory, self.collector = image, directory, collector
        self.port = any_free_port()
        # Processes share the network here, so they cannot all have the port of compose.yaml.
        self.metrics_ports = {name: any_free_port() for name in ("web", "worker", "beat")}
        self.url = f"http://127.0.0.1:{self.port}"
        printed = subprocess.run(
            [sys.executable, "manage.py", "generate_secrets"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        self._secrets = dict(line.split("=", 1) for line in printed.splitlines())
        self._services = read_compose(self._secrets)
        # Separate roles and a separate database, so that the roles of other tests keep their passwords.
        self.admin = servers.admin
        self.name = f"image_{os.getpid()}"
        self._host = urlsplit(servers.app_url).netloc.rpartition("@")[2]
        self._redis = servers.redis_url
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._outputs: dict[str, Path] = {}

    def variables(self, service: str) -> dict[str, str]:
        """Return the variables of a service, with the servers of the test run."""
        found = {}
        for name, value in self._services[service]["environment"].items():
            text = re.sub(r"//platform_(\w+):(.*)@postgres:5432/platform", self._database, str(value))
            found[name] = re.sub(r"redis://.*@valkey:6379/0", self._redis, text)
        if "DATABASE_ADMIN_URL" in found:
            found["DATABASE_ADMIN_URL"] = self.admin
        if service in self.metrics_ports:
            found |= {
                "METRICS_PORT": str(self.metrics_ports[service]),
                "OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.url,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
        return {**found, "PORT": str(self.port)} if service == "web" else found

    def _database(self, match: re.Match[str]) -> str:
        return f"//{self.name}_{match[1]}:{match[2]}@{self._host}/{self.name}"

    def start(self, service: str) -> None:
        """Start the process of a service."""
        output = self._outputs[service] = self._directory / f"{service}.log"
        with output.open("wb") as file:
            self.running[service] = self._start(service, self._services[service]["command"], stdout=file, stderr=file)

    def run(self, service: str, *arguments: str) -> str:
        """Run a command in the container of a service and return its output."""
        started = self._start(service, arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = started.communicate()[0].decode()
        assert started.returncode == 0, output
        return output

    def _start(self, service: str, arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        settings = self._services[service]
        volumes = {}
        for volume in settings.get("volumes", ()):
            name, target = volume.split(":")
            if target != "/tmp":
                source = self._directory / f"volume-{name}"
                if not source.exists():
                    # New volumes get the content and the owner of the directory in the image.
                    shutil.copytree(self._image.root / target.lstrip("/"), source)
                    os.chown(source, 10001, 10001)
                volumes[source] = target
        network = settings.get("network_mode") != "none"
        return self._image.start(
            [*ENTRY_POINT, *arguments],
            variables=self.variables(service),
            volumes=volumes,
            network=network,
            **options,
        )

    def works(self, service: str) -> bool:
        """Return whether the health check of a service passes; raise AssertionError if the service has ended."""
        log = self._outputs[service]
        assert self.running[service].poll() is None, log.read_text()
        with suppress(AssertionError):
            self.run(service, *self._services[service]["healthcheck"]["test"][3:])
            return True
        return False

    def stop(self) -> dict[str, int]:
        """Stop all processes and return their exit codes."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        return {name: process.wait(60) for name, process in self.running.items()}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image, built once."""
    if os.geteuid() != 0:
        skip("Only root can build a root file system without a container engine.")
    directory = make_directory()
    yield build(directory)
    subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=True)


@pytest.fixture(scope="module")
def installation(image: Image, servers: PrivateServers) -> Iterator[Installation]:
    """All services of compose.yaml, started in their order, with an upstream and a key."""
    directory = make_directory()
    with running_collector() as collector:
        made = Installation(image, directory, servers, collector)
        try:
            yield made
        finally:
            for process in made.running.values():
                process.kill()
                process.wait()
            postgres.drop_database(admin=made.admin, database=made.name)
            for role in ("owner", "app"):
                postgres.drop_role(
                    admin=made.admin, role=postgres.DatabaseRole(name=f"{made.name}_{role}", password="")
                )  # fmt: skip
            shutil.rmtree(directory)


def test_every_process_works_without_writing_to_the_image(installation: Installation) -> None:
    # Twice, as in an upgrade.
    for _ in range(2):
        assert "has its roles" in installation.run("database", "prepare_database")
    installation.run("migrate", "migrate")
    for service in ("sandbox", "web", "worker", "beat"):
        installation.start(service)
    for service in ("sandbox", "web", "worker", "beat"):
        eventually(partial(installation.works, service), seconds=300)
    demo = any_free_port()
    installation.running["demo"] = installation._image.start(
        ["/app/.venv/bin/python", "-m", "demo_upstream", "--host", "127.0.0.1", "--port", str(demo)],
        variables={"PYTHONPATH": "/app/platform"},
        volumes={},
    )
    eventually(lambda: not is_free(host="127.0.0.1", port=demo))
    upstream = ["--name", "demo", "--base-url", f"http://127.0.0.1:{demo}/v1", "--models", "*"]
    installation.run("web", "add_upstream", *upstream)
    key = json.loads(installation.run("web", "create_key", "--team", "research", "--json"))["key"]
    with httpx2.Client(
        base_url=installation.url, headers={"Authorization": f"Bearer {key}"}, timeout=HANGS_AFTER
    ) as http:
        # In the sandbox, whose only connection is a socket in a volume.
        tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
        asked = f"Use code_interpreter {json.dumps({'code': CODE})}"
        body = {"model": "demo", "input": asked, "tools": tools, "include": ["code_interpreter_call.outputs"]}
        answer = http.post("/v1/responses", json=body).json()
        assert answer["status"] == "completed", answer
        assert "42 isolated" in json.dumps(answer["output"])
        # In a worker.
        queued = http.post("/v1/responses", json={"model": "demo", "input": "Hello", "background": True}).json()
        eventually(lambda: http.get(f"/v1/responses/{queued['id']}").json()["status"] == "completed", seconds=120)
        installation.collector.wait_for("POST /v1/responses", number=2)
        installation.collector.wait_for("process response")
        for port in installation.metrics_ports.values():
            assert "ors_build_info" in http.get(f"http://127.0.0.1:{port}/metrics").text
        # Part of the image.
        assert http.get("/docs/guide/index.html").status_code == 200
        assert http.get("/static/console/mark.svg").status_code == 200
    assert {name: code for name, code in installation.stop().items() if name != "demo"} == dict.fromkeys(
        ("sandbox", "web", "worker", "beat"), 0
    )


def test_the_bill_of_materials_lists_the_installed_packages(image: Image) -> None:
    bill = json.loads((image.root / "app" / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {(one["name"].lower(), one["version"]) for one in bill["components"]}
    folders = image.root.glob("app/.venv/lib/python3.*/site-packages/*.dist-info/METADATA")
    installed = set()
    for metadata in folders:
        fields = dict(re.findall(r"^(Name|Version): (.+)$", metadata.read_text(), re.MULTILINE))
        installed.add((re.sub(r"[-_.]+", "-", fields["Name"]).lower(), fields["Version"]))
    assert installed
    assert installed <= listed


def test_the_image_has_no_compiler_no_installer_and_no_writable_files(image: Image) -> None:
    for program in ("gcc", "cc", "make", "git", "pip", "pip3", "uv", "curl", "wget"):
        assert not list(image.root.glob(f"usr/*bin/{program}")), program
    assert not (image.root / "app/.venv/bin/pip").exists()
    assert not [path for path in (image.root / "app").rglob("*") if path.lstat().st_uid != 0]
    assert image.user == "10001:10001"
    # Compiled in the build, because a process without write access would compile it at every start.
    assert list(image.root.glob("app/platform/server/__pycache__/settings.*.pyc"))
