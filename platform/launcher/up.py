"""`manage.py up`: a foreground process that starts the whole platform, keeps it running and stops it.

Servers given by DATABASE_URL, REDIS_URL or UPSTREAM_BASE_URL are used instead of the embedded ones.
"""

import json
import os
import secrets
import select
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher import address, postgres, sandboxes, state, valkey
from launcher.address import LOOPBACK, Address
from launcher.errors import LaunchError, RefusedStart
from launcher.home import ServerHome, abandoned_homes, server_home
from launcher.local_models import model_file, model_servers
from launcher.local_models.model_file import ModelFile, ModelFileServer
from launcher.local_models.model_servers import Offer
from launcher.postgres import DatabaseRole
from launcher.processes import ChildCommand, Records
from launcher.report import Report
from launcher.state import InstanceLock, State, write_private
from launcher.supervisor import Interrupts, Stage, StatusFile, Stopped, Supervisor
from launcher.valkey import Valkey

# Below the range of outgoing connections, so that none of them can occupy the port.
POSTGRES_PORTS, VALKEY_PORTS, DEMO_PORTS = 20000, 23000, 26000
DATABASE = "platform"
# Without an answer within this time the start continues, because the terminal may be unattended.
QUESTION_SECONDS = 60.0
# Settings of an instance, stored for its other commands, which must use the same values.
CONFIGURATION = (
    "DATABASE_URL",
    "DATABASE_OWNER_URL",
    "DATABASE_ADMIN_URL",
    "REDIS_URL",
    *state.APPLICATION_SECRETS,
    "UPSTREAM_BASE_URL",
    "UPSTREAM_API_KEY",
    "EMBEDDING_MODEL",
    "IMAGE_MODEL",
    "REASONING_SUMMARY_MODEL",
    "SEARXNG_URL",
    "SANDBOX_URL",
    "SANDBOX_TOKEN",
    "CONTAINER_ALLOWED_DOMAINS",
    "ALLOWED_HOSTS",
    "PORT",
    "STATE_DIR",
    "EGRESS_ALLOW",
    "EMAIL_URL",
    "SMTP_HOST",
    "SMTP_PORT",
    "SMTP_USER",
    "SMTP_PASSWORD",
    "SMTP_SECURITY",
    "MAIL_FROM",
    "PUBLIC_URL",
    "DEBUG",
    "CSRF_TRUSTED_ORIGINS",
    "DATABASE_POOL_SIZE",
    "APPROVAL_WAIT_SECONDS",
    "LEASE_SECONDS",
    "LOG_LEVEL",
    "SECURE_TLS",
    "UPSTREAM_RETRY_SECONDS",
    "UPSTREAM_BACKGROUND_RETRY_SECONDS",
    "UPSTREAM_CONNECT_TIMEOUT",
    "UPSTREAM_IDLE_TIMEOUT",
    "UPSTREAM_FIRST_TOKEN_SECONDS",
    "UPSTREAM_STALL_SECONDS",
    "UPSTREAM_ANSWER_TIMEOUT",
    "UPSTREAM_TOTAL_TIMEOUT",
    "UPSTREAM_MAX_ANSWER_MIB",
    "UPSTREAM_HEADERS",
)


@dataclass(frozen=True, kw_only=True)
class DemoObjects:
    """Result of `prepare_demo`. `admin_password` is set only if the user was created just now."""

    team: str
    key: str
    admin_user: str
    admin_password: str | None
    model_servers: tuple[Offer, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "DemoObjects":
        """Parse the JSON object of `prepare_demo`. Raises LaunchError if it is invalid."""
        try:
            made = json.loads(text)
            found = tuple(Offer.parse(offer) for offer in made["model_servers"])
            known = {name: made[name] for name in ("team", "key", "admin_user", "admin_password")}
            return cls(**known, model_servers=found)
        except (ValueError, KeyError, TypeError) as unreadable:
            raise LaunchError(f"`prepare_demo` did not return its JSON object: {unreadable!r}.") from unreadable

    def password_hint(self, *, state_dir: Path) -> str:
        """Return a hint to the admin password: the password itself if it is new, else the file that contains it."""
        kept = state_dir / "admin-password"
        # Only a hash is in the database, so a new password is stored before anything else can fail.
        if self.admin_password:
            write_private(path=kept, text=f"{self.admin_password}\n")
            return f"password {self.admin_password}"
        if kept.exists():
            return f"password in {kept} unless you changed it"
        return f"your password (or: python3 manage.py changepassword {self.admin_user})"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line. ``port`` is None if not given.

    ``no_input`` disables questions, progress lines and colors, even on a terminal.
    """

    host: str = LOOPBACK
    port: int | None = None
    model_file: ModelFile | None = None
    connect: bool = False
    no_input: bool = False

    @classmethod
    def of(cls, parsed: Namespace) -> "Options":
        """Return the options of parsed arguments. Raises LaunchError if the model file is missing or invalid."""
        file = ModelFile.at(parsed.model_file) if parsed.model_file else None
        if parsed.model:
            file = ModelFile.shipped(parsed.model)
        return cls(
            host=parsed.host, port=parsed.port, model_file=file, connect=parsed.connect, no_input=parsed.no_input
        )


def run(*, root: Path, options: Options, environment: Mapping[str, str]) -> int:
    """Run the platform until a stop signal and return the exit code. Raises LaunchError if it cannot continue."""
    report = Report(plain=options.no_input)
    here = state.locate(root=root, environment=environment)
    instance_lock = InstanceLock(here)
    interrupts = Interrupts()
    records = Records(here.records)
    supervisor = Supervisor(
        records=records, interrupts=interrupts, report=report, status_file=StatusFile(here.status_file)
    )
    try:
        for name in records.end_leftovers():
            report.step(f"Ended {name}, left running by a previous instance that was killed")
        platform = Platform(
            root=root, here=here, environment=environment, options=options, report=report, supervisor=supervisor
        )
        platform.start(instance_lock=instance_lock)
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
        self,
        *,
        root: Path,
        here: State,
        environment: Mapping[str, str],
        options: Options,
        report: Report,
        supervisor: Supervisor,
    ) -> None:
        self._root = root
        self._here = here
        self._options = options
        self._report = report
        self._supervisor = supervisor
        self._admin_url = ""
        self._secrets = state.load_secrets(state_dir=here.directory, environment=environment)
        self._environment = {**environment, "STATE_DIR": str(here.directory), "PYTHONUNBUFFERED": "1"}
        # For children started with `python -m`; manage.py puts the same two directories first. An inherited value is
        # replaced: a module in one of its directories could take the place of one of ours.
        self._environment["PYTHONPATH"] = os.pathsep.join([str(root / "platform"), str(root)])
        self._default({name: self._secrets[name] for name in state.APPLICATION_SECRETS})
        # web starts while migrations run, and worker and beat after them.
        self._default({"REQUIRE_PREPARED_DATABASE": "0"})
        # There is no load balancer, and everything stops within ten seconds.
        self._default({"DRAIN_DELAY_SECONDS": "0", "DRAIN_SECONDS": "3", "WORKER_DRAIN_SECONDS": "3"})

    def start(self, *, instance_lock: InstanceLock) -> None:
        """Start everything, print the summary, and return when requests are served."""
        asked = model_servers.ports(self._environment)
        file = self._options.model_file
        if file:
            # Raises LaunchError without llama.cpp, before anything is started.
            model_file.program(self._environment)
        chosen = self._choose_address(self._options.host, self._options.port)
        instance_lock.announce(url=chosen.url)
        home = server_home(state_dir=self._here.directory)
        for abandoned in abandoned_homes(state_dir=self._here.directory):
            self._report.line(f"          {abandoned} contains data of a deleted state directory; delete it if unused")
        # Servers that need no other server start first; processes that need PostgreSQL wait for it once.
        if not self._is_set("REDIS_URL"):
            self._start_valkey(home)
        if not self._is_set("SANDBOX_URL"):
            self._start_sandbox()
        prepare, model = ["-m", "launcher.prepare", str(self._here.directory / "prepared.json")], "MODEL"
        if not self._is_set("UPSTREAM_BASE_URL"):
            port, model = self._port(DEMO_PORTS), "demo"
            command = self._python("demo upstream", "-m", "demo_upstream", "--host", LOOPBACK, "--port", str(port))
            self._supervisor.start(command, stage=Stage.SERVERS)
            prepare += ["--demo-upstream", f"http://{LOOPBACK}:{port}/v1"]
        served = self._start_model_file(file) if file else None
        if served:
            prepare += ["--model-file-url", served.base_url, "--model-file-name", served.file.name]
        prepare += [f"--ask-port={port}" for port in asked if port != chosen.port]
        prepare += ["--connect"] if self._options.connect else []
        if not self._is_set("DATABASE_URL"):
            self._start_postgres(home)
        # web imports its modules while the database is prepared, and gets no requests before that is done.
        manage = str(self._root / "manage.py")
        web = self._python("web", manage, "web", "--host", chosen.host, "--port", str(chosen.port))
        self._supervisor.start(web, stage=Stage.APPLICATION)
        result = Path(prepare[2])
        try:
            command = self._python("prepare", *prepare)
            # Passed as a variable: an option would appear in process lists.
            variables = {**command.environment, "MODEL_FILE_KEY": served.key} if served else command.environment
            self._supervisor.run_once(replace(command, environment=variables))
            prepared = DemoObjects.parse(result.read_text())
        finally:
            result.unlink(missing_ok=True)
        self._report.step("Database migrated; team, API key and admin user ready")
        found = self._offer(prepared.model_servers)
        # The demo is the model to try only if there is no other.
        model = next((name for offer in found if (name := model_servers.chat_model(offer.routed))), model)
        # Stored immediately: if this start fails later, the next one cannot recover a new password.
        hint = prepared.password_hint(state_dir=self._here.directory)
        # Including paths of mounted secrets.
        names = [*CONFIGURATION, *(f"{name}_FILE" for name in CONFIGURATION)]
        configuration = {name: self._environment[name] for name in names if name in self._environment}
        if self._admin_url:
            # Not in the environment of the processes, which must not have the rights of a superuser.
            configuration["DATABASE_ADMIN_URL"] = self._admin_url
        state.write_environment(state=self._here, variables=configuration)
        is_ready = partial(chosen.is_ready, host_header=address.host_header(self._environment))
        self._supervisor.wait_for(is_ready, name="web")
        # worker and beat start after web, because their imports would slow down the process that the user waits for.
        # The settings have checked METRICS_PORT by now. Each process needs a port of its own for its metrics.
        metrics_port = int(self._environment.get("METRICS_PORT") or 0)
        for number, name in enumerate(("worker", "beat"), 1):
            options = ("--metrics-port", str(metrics_port + number)) if metrics_port else ()
            self._supervisor.start(self._python(name, manage, name, *options), stage=Stage.APPLICATION)
        self._report.step("Web server ready; worker and beat are starting")
        if served:
            self._supervisor.wait_for(served.is_ready, name=model_file.NAME)
            self._report.step(f"llama.cpp serves {served.file.path.name} as {served.file.name}")
            model = served.file.name
        self._report.line()
        for label, value in (
            ("API", f"{chosen.url}/v1"),
            ("Admin", f"{chosen.url}/admin/  user {prepared.admin_user}, {hint}"),
            ("Key", prepared.key),
            ("Logs", str(self._here.logs)),
            ("Try it", curl(address=chosen, key=prepared.key, model=model)),
        ):
            self._report.line(f"  {self._report.strong(f'{label:<7}')} {value}")
        for offer in found:
            self._report.line(f"  {self._report.strong('Found  ')} {offer.describe()}")
        self._report.line()
        self._report.step("Ready. Press Ctrl-C to stop.")

    def _choose_address(self, host: str, port: int | None) -> Address:
        chosen = address.choose(host=host, port=port, environment=self._environment)
        if port is None and "PORT" not in self._environment and chosen.port != address.DEFAULT_PORT:
            self._report.step(f"Port {address.DEFAULT_PORT} is in use, using {chosen.port} instead")
        self._environment["PORT"] = str(chosen.port)
        if (names := address.allowed_hosts(host=chosen.host)) is not None:
            self._default({"ALLOWED_HOSTS": names})
        elif chosen.host in address.WILDCARD_HOSTS and not self._is_set("ALLOWED_HOSTS"):
            self._report.step("The admin is only available on localhost; set ALLOWED_HOSTS to allow other host names")
        return chosen

    def _offer(self, found: Iterable[Offer]) -> list[Offer]:
        """Connect the model servers that the user accepts, and return the offers of all servers."""
        return [self._connect(offer) if self._is_accepted(offer) else offer for offer in found]

    def _is_accepted(self, offer: Offer) -> bool:
        if not offer.can_connect or self._options.no_input or not _is_in_foreground():
            return False
        text = f"{offer.title} runs at {offer.base_url} with {model_servers.listed(offer.models)}. Connect it? [y/N] "
        self._report.question(text)
        replies: list[str] = []

        def has_answered() -> bool:
            if select.select([sys.stdin], [], [], 0)[0]:
                replies.append(sys.stdin.readline())
            return bool(replies)

        if not self._supervisor.keep_until(has_answered, seconds=QUESTION_SECONDS):
            self._report.line("no answer")
        return "".join(replies).strip().lower() in {"y", "yes"}

    def _connect(self, offer: Offer) -> Offer:
        command = self._python("add upstream", str(self._root / "manage.py"), *offer.arguments)
        try:
            self._supervisor.run_once(command)
        except RefusedStart:
            raise
        except LaunchError as failed:
            # The platform works without it, and the summary shows the command.
            self._report.step(str(failed))
            return offer
        self._report.step(f"Connected {offer.title} as the upstream {offer.upstream}")
        return replace(offer, is_connected=True, routed=offer.models)

    def _start_postgres(self, home: ServerHome) -> None:
        password = self._secrets["POSTGRES_SUPERUSER_PASSWORD"]
        cluster = postgres.open_cluster(home=home, port=self._port(POSTGRES_PORTS), password=password)
        self._supervisor.start(
            postgres.command(cluster=cluster, settings=postgres.DURABLE, log=self._here.logs / "postgres.log"),
            stage=Stage.SERVERS,
            before=partial(postgres.clear_stale, data=cluster.data),
        )
        ready = partial(postgres.is_ready, admin=cluster.admin)
        self._supervisor.wait_for(ready, name="postgres")
        owner = DatabaseRole(name="platform_owner", password=self._secrets["POSTGRES_OWNER_PASSWORD"])
        app = DatabaseRole(name="platform_app", password=self._secrets["POSTGRES_APP_PASSWORD"])
        postgres.prepare_database(admin=cluster.admin, database=DATABASE, owner=owner, app=app)
        self._admin_url = cluster.admin
        self._report.step(f"PostgreSQL {cluster.programs.major} on {LOOPBACK}:{cluster.port}")
        for name, role in (("DATABASE_URL", app), ("DATABASE_OWNER_URL", owner)):
            self._environment[name] = role.url(host=LOOPBACK, port=cluster.port, database=DATABASE)

    def _start_valkey(self, home: ServerHome) -> None:
        password, program = self._secrets["VALKEY_PASSWORD"], valkey.find_program(home=home)
        server = Valkey(program=program, home=home, port=self._port(VALKEY_PORTS), password=password)
        self._supervisor.start(
            valkey.command(valkey=server, log=self._here.logs / "valkey.log"), stage=Stage.SERVERS
        )  # fmt: skip
        ready = partial(valkey.is_ready, valkey=server)
        self._supervisor.wait_for(ready, name="valkey")
        self._report.step(f"Valkey on {LOOPBACK}:{server.port}")
        self._environment["REDIS_URL"] = server.url

    def _start_model_file(self, file: ModelFile) -> ModelFileServer:
        served = ModelFileServer(file=file, port=self._port(model_file.PORTS), key=secrets.token_urlsafe(24))
        log = self._here.logs / "model-server.log"
        command = served.command(root=self._root, log=log, environment=self._environment)
        self._supervisor.start(command, stage=Stage.SERVERS)
        return served

    def _start_sandbox(self) -> None:
        if shutil.which("bwrap") is None:
            self._report.step("Code interpreter disabled: bubblewrap is not installed (apt-get install bubblewrap)")
            return
        place = f"{LOOPBACK}:{self._port(sandboxes.PORTS)}"
        self._default({"SANDBOX_TOKEN": self._secrets["SANDBOX_TOKEN"]})
        command = sandboxes.command(
            root=self._root,
            log=self._here.logs / "sandbox.log",
            state_dir=self._here.directory,
            environment=self._environment,
            listen=place,
        )
        self._supervisor.start(command, stage=Stage.SERVERS)
        self._environment["SANDBOX_URL"] = place

    def _port(self, base: int) -> int:
        return address.prefer_port(
            host=LOOPBACK, port=address.usual_port(base=base, key=str(self._here.directory))
        )  # fmt: skip

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


def _is_in_foreground() -> bool:
    # The system stops a background process that reads from its terminal.
    try:
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        return is_terminal and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def curl(*, address: Address, key: str, model: str) -> str:
    """Return the curl command of a first request, which works as printed."""
    body = json.dumps({"model": model, "input": "Hello"}, separators=(",", ":"))
    return (
        f'curl {address.url}/v1/responses -H "Authorization: Bearer {key}" -H "Content-Type: application/json" '
        f"-d {shlex.quote(body)}"
    )
