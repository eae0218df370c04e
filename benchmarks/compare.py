"""`python -m benchmarks compare`: the platform and other servers for the Responses API under the same load.

LiteLLM, OGX and agentic-api are installed from their locks in `servers/` into environments of a cache folder. Each
server is one process (agentic-api, in Rust, uses all cores) in front of the same mock upstream. Cells are measured in
rounds, all servers in turn, so that a drift of the machine affects them equally.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks import published
from benchmarks.load import Measurement, Pace, Target, measure
from benchmarks.matrix import BURST, PROMPT
from benchmarks.report import NOISY_CORES, Floor
from benchmarks.stack import Servers, Stack, is_up, running_stack, tell
from launcher.address import any_free_port
from launcher.errors import LaunchError
from launcher.processes import ChildCommand

LOCKS = Path(__file__).parent / "servers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "responses-platform" / "servers"
GATEWAY_KEY = "sk-benchmark-0123456789abcdef"
CONCURRENCY = (1, 64, 256)
KINDS = ("stream", "json")
# A cell that takes longer than this at a slow server is measured in the first round only: at most 12 minutes in all.
PATIENCE_SECONDS = 12.0
# Medians of windows of two seconds differ by this much between two runs of the same code.
NOISE = 0.05


@dataclass(frozen=True, kw_only=True)
class Package:
    """A server from PyPI: its lock, the Python it needs, and how to start it.

    The command and the environment contain `{bin}`, `{port}`, `{folder}` (writable) and `{upstream}` (without `/v1`).
    """

    name: str
    lock: str
    python: str
    command: Sequence[str]
    models: Mapping[str, str]
    probe: str
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The locked version."""
        name = Path(self.lock).stem
        lines = (LOCKS / self.lock).read_text().splitlines()
        return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{name}=="))


PACKAGES = (
    Package(
        name="agentic-api",
        lock="agentic-api.txt",
        python="3.11",
        command=[
            *("{bin}/agentic-server", "--llm-api-base", "{upstream}", "--openai-api-key", "none"),
            *("--gateway-host", "127.0.0.1", "--gateway-port", "{port}", "--skip-llm-ready-check"),
            *("--db-url", "sqlite://{folder}/agentic.db"),
        ],
        models={"agentic-api": BURST},
        probe="/health",
    ),
    Package(
        name="LiteLLM",
        lock="litellm.txt",
        python="3.11",
        command=[
            *("{bin}/litellm", "--config", str(LOCKS / "litellm.yaml"), "--host", "127.0.0.1", "--port", "{port}"),
            *("--num_workers", "1"),
        ],
        models={"LiteLLM, forwarding": "forwarded", "LiteLLM, translating": "translated"},
        probe="/health/liveliness",
        environment={"UPSTREAM_V1": "{upstream}/v1", "GATEWAY_KEY": GATEWAY_KEY, "LITELLM_LOG": "ERROR"}
        | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        headers={"Authorization": f"Bearer {GATEWAY_KEY}"},
    ),
    Package(
        name="OGX",
        lock="ogx.txt",
        python="3.12",
        command=["{bin}/ogx", "run", "--insecure", "--port", "{port}", str(LOCKS / "ogx.yaml")],
        models={"OGX": f"vllm/{BURST}"},
        probe="/v1/models",
        environment={"UPSTREAM_V1": "{upstream}/v1", "STORE": "{folder}", "OGX_LOGGING": "all=warning"},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server to measure and the model that it routes to the mock."""

    target: Target
    model: str

    def body(self, *, stream: bool) -> dict[str, Any]:
        """Return the request of a cell."""
        body = {"model": self.model, "stream": stream}
        if self.target.api == "responses":
            return {**body, "input": PROMPT}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return {**body, "messages": [{"role": "user", "content": PROMPT}], **options}


# -- other servers -----------------------------------------------------------------------------------------------------


def installed(package: Package) -> Path:
    """Return the folder of programs of a package's environment, installed from its lock if it is not yet there.

    Raises LaunchError with the reason if it cannot be installed here.
    """
    lock = LOCKS / package.lock
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    environment = CACHE / f"{lock.stem}-{package.version}-{digest}"
    complete = environment / "complete"
    if not complete.exists():
        tell(f"installing {package.name} {package.version} in {environment}")
        shutil.rmtree(environment, ignore_errors=True)
        uv = _uv()
        _run(package, uv, "venv", "--quiet", "--no-python-downloads", "--python", _interpreter(package), environment)
        python = environment / "bin" / "python"
        _run(package, uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock)
        complete.touch()
    return environment / "bin"


def _uv() -> str:
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.exists() else shutil.which("uv")
    if not found:
        message = "The other servers are installed with uv: run `python3 manage.py install --dev`."
        raise LaunchError(message)
    return found


def _interpreter(package: Package) -> str:
    """Return an interpreter of the version that the lock was made for. Interpreters of pyenv may be missing in PATH."""
    if sys.version_info[:2] == tuple(map(int, package.python.split("."))):
        return sys.executable
    name = f"python{package.python}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [shutil.which(name), *sorted(map(str, pyenv.glob(f"{package.python}.*/bin/{name}")))]
    for candidate in filter(None, candidates):
        # A shim of pyenv is in PATH even if the version is not selected.
        if subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    message = f"{package.name} {package.version} needs Python {package.python}, and none was found."
    raise LaunchError(message)


def _run(package: Package, *command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{package.name} could not be installed: {done.stderr.strip()[-600:]}"
        raise LaunchError(message)


def started(package: Package, servers: Servers, *, upstream: str) -> Iterator[Contender]:
    """Start a server and yield it once for each of its ways to answer. Raises LaunchError if it does not start."""
    folder = servers.directory / package.lock.removesuffix(".txt")
    folder.mkdir()
    port = any_free_port()
    values = {"bin": str(installed(package)), "port": str(port), "folder": str(folder), "upstream": upstream}
    url = f"http://127.0.0.1:{port}"
    # In its own home, without the environment of the platform: some read DATABASE_URL.
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)} | {
        name: value.format(**values) for name, value in package.environment.items()
    }
    command = ChildCommand(
        name=package.name,
        argv=tuple(word.format(**values) for word in package.command),
        log=servers.log(package.name),
        directory=folder,
        environment=environment,
    )
    process = servers.run(command, is_ready=partial(is_up, url + package.probe))
    for name, model in package.models.items():
        target = Target(name=name, url=url, pid=process.process.pid, api="responses", headers=package.headers)
        yield Contender(target=target, model=model)


@contextmanager
def contenders(directory: Path) -> Iterator[tuple[Stack, list[Contender], list[str]]]:
    """Run all servers; yield the stack of the platform, the contenders, and the reasons why others are missing."""
    with ExitStack() as undo:
        servers, stack = undo.enter_context(running_stack(directory=directory))
        found = [Contender(target=target, model=BURST) for target in (stack.proxy, stack.platform)]
        missing = []
        for package in PACKAGES:
            try:
                found += started(package, servers, upstream=stack.mock.url)
            except LaunchError as failed:
                tell(str(failed))
                missing.append(str(failed))
        yield stack, found, missing


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Comparison:
    """Measurements of all contenders by kind, concurrency and server."""

    contenders: Sequence[Contender]
    seconds: float
    rounds: dict[tuple[str, int, str], list[Measurement]] = field(default_factory=lambda: defaultdict(list))
    completed: int = 0

    def warm_up(self) -> None:
        """Send some requests of each kind: the first ones import modules and open connections."""
        for contender in self.contenders:
            for kind in KINDS:
                self._measure(contender, kind, Pace(connections=4, requests=16))

    def measure(self, *, rounds: int, concurrency: Sequence[int]) -> None:
        """Measure all cells in rounds."""
        for number in range(1, rounds + 1):
            for kind in KINDS:
                for connections in concurrency:
                    tell(f"round {number} of {rounds}: {kind} at {connections}")
                    for contender in self.contenders:
                        self._measure_cell(contender, kind, connections)

    def _measure_cell(self, contender: Contender, kind: str, connections: int) -> None:
        cell = self.rounds[kind, connections, contender.target.name]
        if cell and max(each.seconds for each in cell) > PATIENCE_SECONDS:
            return
        # A window of a few seconds would end before a slow server has answered all connections once: those get as
        # many requests as connections. A process is about as fast with many connections as with one.
        alone = self.rounds[kind, 1, contender.target.name]
        slow = connections > 1 and alone[0].per_second * self.seconds < 2 * connections
        window = Pace(connections=connections, seconds=self.seconds, warm_up=0.5)
        once = Pace(connections=connections, requests=connections)
        cell.append(self._measure(contender, kind, once if slow else window))

    def _measure(self, contender: Contender, kind: str, pace: Pace) -> Measurement:
        others = {each.target.pid for each in self.contenders} - {contender.target.pid}
        body = contender.body(stream=kind == "stream")
        measured = measure(contender.target, body=body, pace=pace, bystanders=sorted(others))
        if contender.target.name == "platform":
            self.completed += measured.completed
        return measured

    def results(self) -> list[dict[str, Any]]:
        """Return the medians of all cells."""
        return [
            {"kind": kind, "connections": connections, "server": server, "rounds": len(cell)}
            | Measurement.of_rounds(cell).model_dump(exclude={"first_error"})
            for (kind, connections, server), cell in self.rounds.items()
        ]


def figure(content: Mapping[str, Any], kind: str, connections: int, server: str, *path: str) -> float | None:
    """Return a figure of a cell, such as `total_ms` and `p50`; None if it was not measured."""
    for result in content["results"]:
        if (result["kind"], result["connections"], result["server"]) == (kind, connections, server):
            value = result
            for name in path:
                value = value[name] if value else None
            return None if value is None else float(value)
    return None


def floors(content: Mapping[str, Any], *, speed: bool) -> Iterator[Floor]:
    """Yield the limits: of failures and, if wanted, of speed relative to the pass-through and between cells."""
    failed = sum(result["failed"] for result in content["results"] if result["server"] == "platform")
    yield Floor(name="failed requests of the platform", figure=failed, limit=0)
    yield Floor(name="completed requests that were not stored", figure=content["not_stored"], limit=0)
    if not speed:
        return

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    def rate(kind: str, connections: int, server: str) -> float | None:
        return figure(content, kind, connections, server, "per_second")

    found = {result["connections"] for result in content["results"]}
    for kind, limit in (("stream", 5.0), ("json", 8.0)):
        if 64 in found:
            slower = ratio(rate(kind, 64, "proxy"), rate(kind, 64, "platform"))
            yield Floor(name=f"{kind} at 64: pass-through ÷ platform", figure=slower, limit=limit)
        if {64, 256} <= found:
            falls = ratio(rate(kind, 64, "platform"), rate(kind, 256, "platform"))
            yield Floor(name=f"{kind}: rate at 64 ÷ rate at 256", figure=falls, limit=1 + NOISE)
    first = figure(content, "stream", 1, "platform", "first_event_ms", "p50")
    yield Floor(name="first event at concurrency 1, p50 ms", figure=first, limit=4.0)


# -- report ------------------------------------------------------------------------------------------------------------

TITLES = {"proxy": "bare pass-through, nothing parsed or stored", "platform": "**this platform**"}


def _servers(content: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(result["server"] for result in content["results"]))


def _title(content: Mapping[str, Any], server: str) -> str:
    version = content["versions"].get(server.split(",", maxsplit=1)[0], "")
    return TITLES.get(server) or f"{server.replace(',', f' {version},') if ',' in server else f'{server} {version}'}"


def summary(content: Mapping[str, Any]) -> str:
    """Return the table of docs/concepts/comparison.md: rates at 64 connections and their cost."""
    cell, number = partial(figure, content), published.number
    rows = [
        [
            _title(content, server),
            number(cell("stream", 64, server, "per_second")),
            number(cell("stream", 64, server, "cpu_ms_per_request")),
            number(cell("stream", 1, server, "first_event_ms", "p50")),
            number(cell("json", 64, server, "per_second")),
            number(cell("json", 64, server, "cpu_ms_per_request")),
            number(cell("json", 64, server, "resident_mb")),
        ]
        for server in _servers(content)
    ]
    head = ["", "streams/s", "CPU ms", "first event ms", "JSON/s", "CPU ms", "MB"]
    return published.table(head, rows) + "\n\n" + _conditions(content)


def _conditions(content: Mapping[str, Any]) -> str:
    at, rounds = content["conditions"], content["rounds"]
    measured = "one round" if rounds == 1 else f"medians of {rounds} interleaved rounds"
    text = (
        f"64 tokens per response, 64 connections (first event: one connection, p50), one server process, {at['cores']} "
        f"cores shared with upstream, driver and database, Python {at['python']}, {at['date']}, {measured}. "
        "This platform stores everything in PostgreSQL."
    )
    return text + "".join(f" Not measured: {reason}" for reason in content["missing"])


def detailed(content: Mapping[str, Any]) -> str:
    """Return tables of both kinds with all latencies."""
    parts = []
    for kind, title in (("stream", "Streams"), ("json", "JSON")):
        rows = []
        for connections in dict.fromkeys(result["connections"] for result in content["results"]):
            for server in _servers(content):
                cell = partial(figure, content, kind, connections, server)
                latencies = [published.number(cell("total_ms", quantile)) for quantile in ("p50", "p95", "p99")]
                first = [published.number(cell("first_event_ms", "p50"))] if kind == "stream" else []
                cost = [published.number(cell(name)) for name in ("cpu_ms_per_request", "resident_mb")]
                cost.append(f"{cell('failed') or 0:.0f}")
                rate = published.number(cell("per_second"))
                rows.append([str(connections), _title(content, server), rate, *latencies, *first, *cost])
        first = ["first event p50"] if kind == "stream" else []
        head = [
            "connections",
            f"{title}: server",
            "per second",
            "p50 ms",
            "p95",
            "p99",
            *first,
            "CPU ms",
            "MB",
            "failed",
        ]
        parts.append(published.table(head, rows))
    return "\n\n".join([*parts, _conditions(content)])


VIEWS = {"summary": summary, "detailed": detailed}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the tables and limits. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("compare", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="check in two minutes that every server works")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each cell (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a measurement (default 2)")
    parser.add_argument(
        "--concurrency",
        type=lambda text: tuple(sorted({1, *map(int, text.split(","))})),
        default=CONCURRENCY,
        help="numbers of connections beside 1, such as 64,256",
    )
    options = parser.parse_args(arguments)
    with contenders(directory) as (stack, found, missing):
        comparison = Comparison(contenders=found, seconds=0.5 if options.smoke else options.seconds)
        comparison.warm_up()
        rounds = 1 if options.smoke else options.rounds
        comparison.measure(rounds=rounds, concurrency=(1, 8) if options.smoke else options.concurrency)
        with psycopg.connect(stack.admin) as database:
            query = "SELECT count(*) FROM responses_response WHERE status = 'completed'"
            stored = (database.execute(query).fetchone() or (0,))[0]
    content = {
        "conditions": published.conditions(),
        "proxy": stack.proxy_parts,
        "versions": {package.name: package.version for package in PACKAGES},
        "missing": missing,
        "rounds": rounds,
        "not_stored": abs(comparison.completed - stored),
        "results": comparison.results(),
    }
    print(detailed(content))
    _print_failures(comparison)
    judged = list(floors(content, speed=not options.smoke))
    for floor in judged:
        print(floor.text())
    _print_ratios(content)
    return published.conclude("compare", options, content=content, floors=judged)


def _print_failures(comparison: Comparison) -> None:
    for (kind, connections, server), cell in comparison.rounds.items():
        if errors := [each.first_error for each in cell if each.failed]:
            print(f"{server}, {kind} at {connections}: {errors[0][:200]}")
    noise = median(each.foreign_cores for cell in comparison.rounds.values() for each in cell)
    if noise > NOISY_CORES:
        print(f"Other processes used {noise:.1f} cores meanwhile: repeat on an idle machine.")


def _print_ratios(content: Mapping[str, Any]) -> None:
    for kind in KINDS:
        ours = figure(content, kind, 64, "platform", "per_second")
        for server in _servers(content):
            theirs = figure(content, kind, 64, server, "per_second")
            if ours and theirs and server != "platform":
                print(f"{kind} at 64: {ours / theirs:.2f} times {server}")
