"""`manage.py up` with real processes: started, used from a second terminal, killed, stopped and started again."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from operator import ge
from pathlib import Path
from typing import Any, Self

import httpx2
import psutil
import psycopg
import pytest

from core import interpreter
from launcher.address import any_free_port
from launcher.errors import NOT_READY, WRONG_SETTINGS
from launcher.processes import identify, wait_until
from tests.support.api import Api, ok
from tests.support.background import RUNNING, ended
from tests.support.machine_clock import machine_time
from tests.support.sampling import SEED, rest_at_night
from tests.support.waiting import HANGS_AFTER, PATIENCE, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    "DATABASE_URL",
    "DATABASE_OWNER_URL",
    "REDIS_URL",
    "SECRET_KEY",
    "API_KEY_PEPPER",
    "ENCRYPTION_KEYS",
    "STATE_DIR",
    "SANDBOX_URL",
    "SANDBOX_TOKEN",
)
START_SECONDS = 90
RECOVERY_SECONDS = 10.0
CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}


class Up:
    """A `manage.py up` in its own process group, as in a terminal, with its output in a file."""

    def __init__(self, state_dir: Path, *arguments: str, **variables: str) -> None:
        state_dir.mkdir(exist_ok=True)
        self.state_dir = state_dir
        self.environment = {**self.variables(state_dir), **variables}
        self._output = state_dir / "terminal"
        with self._output.open("wb") as terminal:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def variables(state_dir: Path) -> dict[str, str]:
        """Return the environment of the tests without their servers."""
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        # Other processes on this machine have no influence.
        return {**kept, "STATE_DIR": str(state_dir), "MODEL_SERVER_PORTS": "none"}

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def url(self) -> str:
        return self.labelled("API").removesuffix("/v1")

    def labelled(self, label: str) -> str:
        """Return the text after a label in the summary that `up` prints."""
        return next(
            line.strip().removeprefix(label).strip()
            for line in self.output.splitlines()
            if line.startswith(f"  {label}")
        )

    def wait_until_ready(self) -> "Up":
        wait_until(lambda: "Ready." in self.output or self.process.poll() is not None, seconds=START_SECONDS)
        assert "Ready." in self.output, self.output
        return self

    def children(self) -> dict[str, int]:
        """Return the pids of the recorded children by name."""
        records = sorted((self.state_dir / "pids").glob("*.json"))
        return {record.stem: json.loads(record.read_text())["pid"] for record in records}

    def manage(self, *arguments: str) -> str:
        """Run a command as in a second terminal and return its output."""
        argv = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal and return the exit code and the seconds until the exit."""
        started = machine_time()
        os.killpg(self.process.pid, number)
        return self.process.wait(timeout=HANGS_AFTER), machine_time() - started


Start = Callable[..., Up]


@pytest.fixture(scope="module")
def directories() -> Iterator[Callable[[], Path]]:
    """State directories that the account of the database can enter, unlike those of pytest."""
    made: list[Path] = []

    def make() -> Path:
        made.append(ROOT / ".test-run" / f"state-{os.getpid()}-{len(made)}")
        return made[-1]

    yield make
    for directory in made:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def start(directories: Callable[[], Path]) -> Iterator[Start]:
    running: list[Up] = []

    def begin(*arguments: str, state_dir: Path | None = None, **variables: str) -> Up:
        running.append(Up(state_dir or directories(), "--no-input", *arguments, **variables))
        return running[-1]

    yield begin
    for up in running:
        if up.process.poll() is None:
            up.end()


@pytest.fixture(scope="module")
def running(start: Start) -> Up:
    """A platform shared by all tests that leave it running."""
    return start("--port", str(any_free_port())).wait_until_ready()


def call(up: Up, path: str, *, key: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{up.url}{path}",
        data=json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        parsed: dict[str, Any] = json.load(answer)
        return parsed


def say_hello(up: Up) -> dict[str, Any]:
    return call(up, "/v1/responses", key=up.labelled("Key"), body={"model": "demo", "input": "Hello"})


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_curl_line_works_as_printed(running: Up) -> None:
    done = subprocess.run(["sh", "-c", running.labelled("Try it")], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["status"] == "completed"


def test_a_second_up_fails_immediately_and_names_the_first(running: Up) -> None:
    argv = [sys.executable, "manage.py", "up"]
    second = subprocess.run(argv, cwd=ROOT, env=running.environment, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"already running at {running.url} (pid {running.process.pid})" in second.stderr
    assert second.stderr.count("\n") == 1


@pytest.mark.nightly
def test_each_main_process_logs_a_slow_interpreter_once(running: Up) -> None:
    warning, logs = interpreter.current().warning(), Path(running.labelled("Logs"))
    eventually(lambda: "celery@" in (logs / "worker.log").read_text())
    times = [(logs / name).read_text().count(warning or "profile-guided") for name in ("web.log", "worker.log")]
    assert times == ([1, 1] if warning else [0, 0])


def test_a_second_terminal_creates_a_key_for_the_running_platform(running: Up) -> None:
    made = json.loads(running.manage("create_key", "--team", "acme", "--json"))
    assert call(running, "/v1/models", key=made["key"])["object"] == "list"


def test_secrets_are_not_readable_for_other_users(running: Up) -> None:
    private = ["secrets.json", "environment.json", "demo-key", "admin-password"]
    assert {name: (running.state_dir / name).stat().st_mode & 0o777 for name in private} == dict.fromkeys(
        private, 0o600
    )


def test_the_process_list_shows_no_password(running: Up) -> None:
    secrets = json.loads((running.state_dir / "secrets.json").read_text())
    shown = " ".join(process.command for pid in running.children().values() if (process := identify(pid)))
    assert not [name for name, value in secrets.items() if value in shown]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
def test_the_servers_do_not_run_as_root(running: Up) -> None:
    children = running.children()
    assert 0 not in [Path(f"/proc/{children[name]}").stat().st_uid for name in ("postgres", "valkey")]


NO_SANDBOX = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap: apt-get install -y bubblewrap")


@pytest.mark.parametrize(
    "name",
    [
        *rest_at_night(["worker", "postgres", "web", "beat", "valkey", "demo upstream"], first=1),
        pytest.param("sandbox", marks=NO_SANDBOX),
    ],
)
def test_a_killed_child_is_restarted(running: Up, name: str) -> None:
    before = running.children()[name]
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: running.children().get(name, before) != before, seconds=90)
    assert wait_until(partial(answers, running), seconds=90, interval=0.2)
    assert f"{name} died (signal SIGKILL)" in running.output


@pytest.mark.nightly
def test_a_worker_that_keeps_crashing_leaves_the_rest_running(running: Up) -> None:
    web = running.children()["web"]
    # Each dies long before it has started, more often than a start of the platform accepts.
    for _ in range(6):
        worker = running.children()["worker"]
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        assert wait_until(partial(has_other_worker, running, worker), seconds=90, interval=0.01)
        assert answers(running)
    assert (running.process.poll(), running.children()["web"]) == (None, web)
    status = json.loads((running.state_dir / "processes.json").read_text())
    worker_status = next(entry for entry in status["processes"] if entry["name"] == "worker")
    assert worker_status["restarts"] >= 6
    assert worker_status["last_end"] == "signal SIGKILL"
    # A worker works again without a restart of the platform.
    with httpx2.Client(timeout=HANGS_AFTER) as http:
        api = Api(http, url=running.url, secret=running.labelled("Key"))
        made = ok(api.post("/responses", {"model": "demo", "input": "Hello", "background": True}))
        assert ended(api, made["id"], seconds=START_SECONDS)["status"] == "completed"


def has_other_worker(up: Up, before: int) -> bool:
    return up.children()["worker"] != before


def answers(up: Up) -> bool:
    with suppress(OSError):
        return bool(say_hello(up)["status"] == "completed")
    return False


# -- random kills under load -------------------------------------------------------------------------------------------


class Clients:
    """Clients that create responses one after the other inside a block, in the foreground and in the background.

    `ended` has the ids of each client's responses that it saw end, `created` the ids of all stored responses.
    """

    def __init__(self, api: Api) -> None:
        self.created: list[str] = []
        self.statuses: set[int] = set()
        self._api, self._over = api, threading.Event()
        self._errors: list[BaseException] = []
        bodies: list[dict[str, Any]] = [{}, {}, {"background": True}]
        if shutil.which("bwrap"):
            text = 'call code_interpreter {"code": "6 * 7"}'
            bodies.append({"background": True, "input": text, "tools": [CODE_INTERPRETER]})
        self.ended: list[list[str]] = [[] for _ in bodies]
        work = zip(bodies, self.ended, strict=True)
        self._threads = [threading.Thread(target=self._create, args=(body, ended)) for body, ended in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(100)
        if self._errors:
            raise self._errors[0]

    def wait_for_each(self, *, seconds: float) -> None:
        """Wait until each client has seen the end of a newly created response."""
        # A response that was created before may end.
        goals = [len(ended) + 2 for ended in self.ended]
        eventually(lambda: all(map(ge, map(len, self.ended), goals)), seconds=seconds)

    def _create(self, body: dict[str, Any], ended: list[str]) -> None:
        try:
            while not self._over.wait(0.2):
                # The process that serves it may be killed.
                with suppress(httpx2.TransportError):
                    answer = self._api.post("/responses", {"model": "demo", "input": "Hello", **body})
                    self.statuses.add(answer.status_code)
                    if answer.status_code == 200:
                        response_id = answer.json()["id"]
                        self.created.append(response_id)
                        if self._has_ended(response_id):
                            ended.append(response_id)
        except BaseException as error:
            self._errors.append(error)

    def _has_ended(self, response_id: str) -> bool:
        """Wait for the end of a response; false if the clients end first."""
        while not self._over.wait(0.05):
            with suppress(httpx2.TransportError):
                answer = self._api.get(f"/responses/{response_id}")
                self.statuses.add(answer.status_code)
                if answer.status_code == 200 and answer.json()["status"] not in RUNNING:
                    return True
        return False


def kill(up: Up, name: str) -> None:
    """Kill a process and wait until its successor works."""
    if name == "web process":
        parent = psutil.Process(up.children()["web"])
        if victims := parent.children():
            victims[0].kill()
            eventually(lambda: len(parent.children()) == len(victims) and victims[0] not in parent.children())
        return
    pid, log = up.children()[name], up.state_dir / "logs" / f"{name}.log"
    seen = log.stat().st_size
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: up.children().get(name, pid) != pid, seconds=START_SECONDS)
    match name:
        case "web":
            eventually(up.is_ready, seconds=START_SECONDS)
        case "worker":
            works = b"the worker claims background responses"
            eventually(lambda: works in log.read_bytes()[seen:], seconds=START_SECONDS)
        case "beat":
            eventually(lambda: b"this scheduler is active" in log.read_bytes()[seen:], seconds=START_SECONDS)


@pytest.mark.nightly
def test_everything_is_served_after_random_kills(running: Up) -> None:
    chance = random.Random(SEED)
    names = [name for name in ("web", "worker", "beat", "sandbox") if name in running.children()]
    order = chance.sample([*names, "web process"], len(names) + 1)
    with httpx2.Client(timeout=HANGS_AFTER) as http:
        api = Api(http, url=running.url, secret=running.labelled("Key"))
        with Clients(api) as clients:
            clients.wait_for_each(seconds=START_SECONDS)
            for name in order:
                kill(running, name)
                # Two responses of each client come one after the other, some with code in a new container.
                clients.wait_for_each(seconds=3 * RECOVERY_SECONDS)
        assert clients.statuses <= {200, 503}
        for response_id in clients.created:
            response = ended(api, response_id, seconds=3 * RECOVERY_SECONDS)
            # An interrupted call of the code interpreter is not repeated; the run fails with that reason.
            is_unknown = response["status"] == "failed" and response["error"]["code"] == "server_error"
            assert response["status"] == "completed" or (is_unknown and response["background"]), response
        # Responses whose client has lost its connection end as well.
        eventually(
            lambda: not [one for one in ok(api.get("/responses", limit=100))["data"] if one["status"] in RUNNING],
            seconds=3 * RECOVERY_SECONDS,
        )


@pytest.mark.nightly
def test_ctrl_c_during_startup_ends_everything(start: Start) -> None:
    up = start("--port", str(any_free_port()))
    assert wait_until(lambda: "PostgreSQL" in up.output, seconds=START_SECONDS)
    children = up.children()
    code, seconds = up.end(signal.SIGINT)
    assert (code, seconds < 10) == (0, True)
    assert "postgres" in children
    assert [name for name, pid in children.items() if identify(pid)] == []


def test_a_requested_port_in_use_is_rejected_in_one_sentence(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = start("--port", str(port))
        assert up.process.wait(timeout=START_SECONDS) == 1
    assert up.output.splitlines()[-1].startswith(f"error: Port {port} on 127.0.0.1 is in use")


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"SECRET_KEY": "short"}, "web refuses to start: SECRET_KEY is too weak"),
        pytest.param(
            {"LEASE_SECONDS": "abc"},
            " refuses to start: LEASE_SECONDS must be an integer of at least",
            marks=pytest.mark.nightly,
        ),
        ({"SANDBOX_MAX_MEMORY": "7g"}, "sandbox refuses to start: SANDBOX_MAX_MEMORY must be one of"),
    ],
)
def test_a_refused_setting_ends_the_start_at_once(start: Start, variables: dict[str, str], error: str) -> None:
    up = start("--port", str(any_free_port()), **variables)
    assert up.process.wait(timeout=START_SECONDS) == WRONG_SETTINGS
    last = up.output.splitlines()[-1]
    assert last.startswith("error: ")
    assert error in last
    assert "restarting" not in up.output
    assert "Traceback" not in up.output


@pytest.mark.nightly
def test_a_port_of_metrics_in_use_ends_the_start_at_once(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = start("--port", str(any_free_port()), METRICS_PORT=str(port))
        assert up.process.wait(timeout=START_SECONDS) == NOT_READY
    assert up.output.splitlines()[-1].startswith(f"error: web refuses to start: Cannot listen on 127.0.0.1:{port}")
    assert "restarting" not in up.output


def demo_upstream_of(up: Up) -> str:
    process = identify(up.children()["demo upstream"])
    assert process is not None
    return f"http://127.0.0.1:{process.command.rpartition(' ')[2]}/v1"


@pytest.mark.nightly
@pytest.mark.usefixtures("servers")
def test_servers_named_in_the_environment_are_used(start: Start, running: Up) -> None:
    owner, app = os.environ["DATABASE_OWNER_URL"], os.environ["DATABASE_URL"]
    name = f"{app.rpartition('/')[2]}_named"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    up = start(
        *("--port", str(any_free_port())),
        DATABASE_URL=f"{app.rpartition('/')[0]}/{name}",
        DATABASE_OWNER_URL=f"{owner.rpartition('/')[0]}/{name}",
        REDIS_URL=os.environ["REDIS_URL"].removesuffix("/0") + "/1",
        UPSTREAM_BASE_URL=demo_upstream_of(running),
        SANDBOX_URL="127.0.0.1:1",
    ).wait_until_ready()
    assert sorted(up.children()) == ["beat", "web", "worker"]
    assert '"model":"MODEL"' in up.labelled("Try it")
    assert say_hello(up)["status"] == "completed"


# -- a platform without bubblewrap that is killed, started again and ended ---------------------------------------------


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A folder with all programs except bubblewrap, which the account of the servers can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        places = [Path(place) for place in os.environ["PATH"].split(os.pathsep)]
        found = {program.name: program for place in reversed(places) if place.is_dir() for program in place.iterdir()}
        for name, program in found.items():
            if name != "bwrap":
                Path(folder, name).symlink_to(program)
        yield Path(folder)


@pytest.fixture(scope="module")
def limited(start: Start, programs: Path) -> Iterator[Up]:
    """A platform without bubblewrap, started while its default port is in use."""
    with ExitStack() as stack:
        # Another process may use it already.
        with suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", 8000)))
        yield start(PATH=str(programs)).wait_until_ready()


@pytest.mark.nightly
def test_a_default_port_in_use_is_replaced_by_a_free_one(limited: Up) -> None:
    assert "Port 8000 is in use, using" in limited.output
    assert limited.is_ready()


@pytest.mark.nightly
def test_a_missing_sandbox_is_reported_in_one_line(limited: Up) -> None:
    assert "bubblewrap is not installed (apt-get install bubblewrap)" in limited.output
    assert "sandbox" not in limited.children()


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """A platform that was started after its supervisor was killed, with its processes and key before."""

    up: Up
    key: str
    response: dict[str, Any]
    killed_children: dict[str, int]


@pytest.fixture(scope="module")
def restarted(start: Start, limited: Up) -> Restarted:
    """The platform after its supervisor was killed and `up` was called again."""
    response, children = say_hello(limited), limited.children()
    key = (limited.state_dir / "demo-key").read_text().strip()
    limited.end(signal.SIGKILL)
    up = start("--port", str(any_free_port()), state_dir=limited.state_dir).wait_until_ready()
    return Restarted(up=up, key=key, response=response, killed_children=children)


@pytest.mark.nightly
def test_a_killed_supervisor_does_not_break_the_next_start(restarted: Restarted) -> None:
    killed = set(restarted.killed_children.values())
    assert not {pid for pid in killed if identify(pid)}
    assert restarted.up.labelled("Key") == restarted.key
    stored = call(restarted.up, f"/v1/responses/{restarted.response['id']}", key=restarted.key)
    assert stored["output"] == restarted.response["output"]


@pytest.mark.nightly
def test_sigterm_ends_everything_within_ten_seconds(restarted: Restarted) -> None:
    up, children = restarted.up, restarted.up.children()
    assert children
    code, seconds = up.end(signal.SIGTERM)
    assert (code, seconds < 10) == (0, True)
    assert [name for name, pid in children.items() if identify(pid)] == []
    assert not (up.state_dir / "environment.json").exists()
