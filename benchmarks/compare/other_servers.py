"""The other servers: LiteLLM, OGX and agentic-api, installed from their locks and started beside the platform."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.compare.measurements import Contender
from benchmarks.load import Target
from benchmarks.matrix import BURST
from benchmarks.stack import Servers, Stack, is_up, running_stack, tell
from launcher.address import any_free_port
from launcher.errors import LaunchError
from launcher.processes import ChildCommand

LOCKS = Path(__file__).parents[1] / "servers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "responses-platform" / "servers"
GATEWAY_KEY = "sk-benchmark-0123456789abcdef"


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
