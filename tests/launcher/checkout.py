"""A copy of the launcher with tiny requirements, and a package index on a loopback port that serves them."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from typing_extensions import override

from launcher.bootstrap import DEVELOPMENT, RUNTIME
from tests.support.waiting import HANGS_AFTER

ROOT = Path(__file__).resolve().parents[2]
# A Python without the packages, as on a new machine. This one is in the environment of the checkout.
BARE_PYTHON: str = getattr(sys, "_base_executable", sys.executable)
UV = Path(sys.executable).with_name("uv")


def build_wheel(
    *, directory: Path, name: str, version: str, files: Mapping[str, bytes], tag: str = "py3-none-any"
) -> Path:
    """Write a wheel and return its path."""
    information = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{information}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = ""
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    wheel = directory / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in {**content, f"{information}/RECORD": f"{record}{information}/RECORD,,\n".encode()}.items():
            archive.writestr(path, data)
    return wheel


def requirement(wheel: Path, *, digest: str | None = None) -> str:
    """Return the locked, hashed requirement of a wheel."""
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} \\\n    --hash=sha256:{digest or hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


class PackageIndex(ThreadingHTTPServer):
    """A simple index of wheels. ``status`` replaces every answer; ``released`` being clear delays every answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheels: list[Path] = []
        self.paths: list[str] = []
        self.status = 200
        self.released = threading.Event()
        self.released.set()
        self.asked = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class _Handler(BaseHTTPRequestHandler):
    server: PackageIndex

    def do_GET(self) -> None:
        index = self.server
        index.paths.append(self.path)
        index.asked.set()
        index.released.wait(60)
        *_, last = self.path.rstrip("/").split("/")
        found = [wheel for wheel in index.wheels if last in (wheel.name, wheel.name.split("-")[0])]
        if index.status != 200 or not found:
            self.send_error(index.status if index.status != 200 else 404)
            return
        links = "".join(f'<a href="/files/{wheel.name}">{wheel.name}</a>' for wheel in found)
        body = found[0].read_bytes() if last.endswith(".whl") else links.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass(kw_only=True)
class Checkout:
    """A copy of manage.py and the launcher. Commands run with the environment of a new machine."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, *, root: Path, home: Path) -> "Checkout":
        """Copy the files that the launcher consists of, without requirements."""
        root.mkdir(exist_ok=True)
        home.mkdir()
        for name in ("manage.py", "pyproject.toml"):
            shutil.copy(ROOT / name, root)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "platform" / "launcher", root / "platform" / "launcher", ignore=ignored)
        (root / RUNTIME).parent.mkdir()
        checkout = cls(root=root)
        # Without this machine's pip configuration and proxy, with the uv of the tests, and without its retries.
        checkout.variables = {
            "PATH": f"{UV.parent}:/usr/bin:/bin",
            "HOME": str(home),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_HTTP_RETRIES": "0",
        }
        checkout.require("")
        return checkout

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def require(self, runtime: str, *, development: str = "") -> None:
        """Replace the requirements; those of the tests include those of the platform."""
        (self.root / RUNTIME).write_text(runtime)
        (self.root / DEVELOPMENT).write_text(runtime + development)

    def start(self, *arguments: str, python: str = BARE_PYTHON, **options: object) -> subprocess.Popen[str]:
        """Start a command in a process group of its own."""
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [python, str(self.root / "manage.py"), *arguments],
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Shells without job control start background processes with SIGINT ignored, which children inherit.
            **{
                "cwd": self.root,
                "start_new_session": True,
                "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                **options,
            },
        )

    def run(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*arguments, **options)  # type: ignore[arg-type]
        output, errors = process.communicate(timeout=HANGS_AFTER)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
