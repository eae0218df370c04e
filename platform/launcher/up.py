"""`manage.py up`: a foreground process that starts the whole platform, keeps it running and stops it.

Servers given by DATABASE_URL, REDIS_URL or UPSTREAM_BASE_URL are used instead of the embedded ones.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher import address, credentials, health, ports, sandboxes, state, summary
from launcher.address import LOOPBACK, Address
from launcher.home import abandoned_homes, server_home
from launcher.interrupts import Interrupts, Stopped
from launcher.options import Options
from launcher.processes import ChildCommand, Records
from launcher.report import Report
from launcher.servers import EmbeddedServers
from launcher.state import InstanceLock, State
from launcher.summary import DemoObjects
from launcher.supervisor import Stage, Supervisor

DEMO_PORTS = 26000
READY_SECONDS = 60.0
# Settings of an instance, stored for its other commands, which must use the same values.
CONFIGURATION = (
    "DATABASE_URL",
    "DATABASE_OWNER_URL",
    "REDIS_URL",
    *credentials.APPLICATION,
    "UPSTREAM_BASE_URL",
    "UPSTREAM_API_KEY",
    "EMBEDDING_MODEL",
    "IMAGE_MODEL",
    "SEARXNG_URL",
    "SANDBOX_URL",
    "SANDBOX_TOKEN",
    "ALLOWED_HOSTS",
    "PORT",
    "STATE_DIR",
    "EGRESS_ALLOW",
    "DEBUG",
    "CSRF_TRUSTED_ORIGINS",
    "DATABASE_POOL_SIZE",
    "LEASE_SECONDS",
    "LOG_LEVEL",
    "SECURE_TLS",
    "UPSTREAM_CONNECT_TIMEOUT",
    "UPSTREAM_IDLE_TIMEOUT",
)


def run(*, root: Path, options: Options, environment: Mapping[str, str]) -> int:
    """Run the platform until a stop signal and return the exit code. Raises LaunchError if it cannot continue."""
    report = Report(plain=options.plain)
    here = state.locate(root=root, environment=environment)
    instance_lock = InstanceLock(here)
    interrupts = Interrupts()
    records = Records(here.records)
    supervisor = Supervisor(records=records, interrupts=interrupts, report=report)
    try:
        for name in records.end_leftovers():
            report.step(f"Ended {name}, left running by a previous instance that was killed")
        platform = Platform(root=root, here=here, environment=environment, report=report, supervisor=supervisor)
        platform.start(options=options, instance_lock=instance_lock)
        supervisor.run_forever()
    except Stopped:
        report.line()
        report.step("Stopping")
    finally:
        supervisor.stop()
        here.environment_file.unlink(missing_ok=True)
        instance_lock.release()
    report.step("Stopped")
    return 0


class Platform:
    """The steps of a start in their order. Each step adds to the environment of the child processes."""

    def __init__(
        self, *, root: Path, here: State, environment: Mapping[str, str], report: Report, supervisor: Supervisor
    ) -> None:
        self._root = root
        self._here = here
        self._report = report
        self._supervisor = supervisor
        self._secrets = credentials.load(state_dir=here.directory, environment=environment)
        self._environment = {**environment, "STATE_DIR": str(here.directory), "PYTHONUNBUFFERED": "1"}
        # For children started with `python -m`; manage.py puts the same two directories first.
        paths = [str(root / "platform"), str(root), *filter(None, [environment.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._default({name: self._secrets[name] for name in credentials.APPLICATION})

    def start(self, *, options: Options, instance_lock: InstanceLock) -> None:
        """Start everything, print the summary, and return when requests are served."""
        chosen = self._choose_address(options)
        instance_lock.announce(url=chosen.url)
        self._start_servers()
        if not self._is_set("SANDBOX_URL"):
            self._start_sandbox()
        demo_url = None if self._is_set("UPSTREAM_BASE_URL") else self._start_demo_upstream()
        prepared = self._prepare(demo_url)
        # Stored immediately: if this start fails later, the next one cannot recover a new password.
        hint = summary.password_hint(prepared=prepared, state_dir=self._here.directory)
        state.write_environment(state=self._here, variables=self._configuration())
        self._start_application(chosen)
        self._say_ready(chosen, prepared, hint=hint, model="demo" if demo_url else "MODEL")

    def _configuration(self) -> dict[str, str]:
        """Return the settings of this instance, including paths of mounted secrets (`NAME_FILE`)."""
        names = [*CONFIGURATION, *(f"{name}_FILE" for name in CONFIGURATION)]
        return {name: self._environment[name] for name in names if name in self._environment}

    def _choose_address(self, options: Options) -> Address:
        chosen = address.choose(options=options, environment=self._environment)
        if options.port is None and "PORT" not in self._environment and chosen.port != address.DEFAULT_PORT:
            self._report.step(f"Port {address.DEFAULT_PORT} is in use, using {chosen.port} instead")
        self._environment["PORT"] = str(chosen.port)
        if (names := address.allowed_hosts(host=chosen.host)) is not None:
            self._default({"ALLOWED_HOSTS": names})
        elif chosen.host in address.WILDCARD_HOSTS and not self._is_set("ALLOWED_HOSTS"):
            self._report.step("The admin is only available on localhost; set ALLOWED_HOSTS to allow other host names")
        return chosen

    def _start_servers(self) -> None:
        home = server_home(state_dir=self._here.directory)
        for abandoned in abandoned_homes(state_dir=self._here.directory):
            self._report.line(f"          {abandoned} contains data of a deleted state directory; delete it if unused")
        servers = EmbeddedServers(
            home=home,
            logs=self._here.logs,
            supervisor=self._supervisor,
            report=self._report,
            secrets=self._secrets,
        )
        if not self._is_set("DATABASE_URL"):
            self._environment.update(servers.start_postgres())
        if not self._is_set("REDIS_URL"):
            self._environment.update(servers.start_valkey())

    def _start_sandbox(self) -> None:
        if (missing := sandboxes.missing()) is not None:
            self._report.step(missing)
            return
        port = ports.prefer(host=LOOPBACK, port=ports.usual(base=sandboxes.PORTS, key=str(self._here.directory)))
        place = f"{LOOPBACK}:{port}"
        self._default({"SANDBOX_TOKEN": self._secrets["SANDBOX_TOKEN"]})
        self._supervisor.start(
            sandboxes.command(
                root=self._root,
                log=self._here.logs / "sandbox.log",
                state_dir=self._here.directory,
                environment=self._environment,
                listen=place,
            ),
            stage=Stage.SERVERS,
        )
        self._environment["SANDBOX_URL"] = place

    def _start_demo_upstream(self) -> str:
        """Start the demo upstream and return the base URL of its API."""
        port = ports.prefer(host=LOOPBACK, port=ports.usual(base=DEMO_PORTS, key=str(self._here.directory)))
        command = self._python("demo upstream", "-m", "demo_upstream", "--host", LOOPBACK, "--port", str(port))
        self._supervisor.start(command, stage=Stage.SERVERS)
        return f"http://{LOOPBACK}:{port}/v1"

    def _prepare(self, demo_url: str | None) -> DemoObjects:
        result = self._here.directory / "prepared.json"
        arguments = ["--demo-upstream", demo_url] if demo_url else []
        try:
            self._supervisor.run_once(self._python("prepare", "-m", "launcher.prepare", str(result), *arguments))
            prepared = summary.parse(result.read_text())
        finally:
            result.unlink(missing_ok=True)
        self._report.step("Database migrated; team, API key and admin user ready")
        return prepared

    def _start_application(self, chosen: Address) -> None:
        manage = str(self._root / "manage.py")
        web = self._python("web", manage, "web", "--host", chosen.host, "--port", str(chosen.port))
        self._supervisor.start(web, stage=Stage.APPLICATION)
        probe = health.Probe(address=chosen, host_header=health.host_header(self._environment))
        self._supervisor.wait_for(probe.is_ready, seconds=READY_SECONDS, what="web")
        # Started after web, because their imports would slow down the process that the user waits for.
        for name in ("worker", "beat"):
            self._supervisor.start(self._python(name, manage, name), stage=Stage.APPLICATION)
        self._report.step("Web server ready; worker and beat are starting")

    def _say_ready(self, chosen: Address, prepared: DemoObjects, *, hint: str, model: str) -> None:
        self._report.line()
        for label, value in summary.block(
            address=chosen, prepared=prepared, hint=hint, model=model, logs=self._here.logs
        ):
            self._report.line(f"  {self._report.strong(f'{label:<7}')} {value}")
        self._report.line()
        self._report.step("Ready. Press Ctrl-C to stop.")

    def _python(self, name: str, *arguments: str) -> ChildCommand:
        return ChildCommand(
            name=name,
            argv=(sys.executable, *arguments),
            log=self._here.logs / f"{name.replace(' ', '-')}.log",
            directory=self._root,
            environment=dict(self._environment),
        )

    def _is_set(self, name: str) -> bool:
        """Return whether a setting is given directly or as NAME_FILE."""
        return bool(self._environment.get(name) or self._environment.get(f"{name}_FILE"))

    def _default(self, values: Mapping[str, str]) -> None:
        self._environment.update({name: value for name, value in values.items() if not self._is_set(name)})
