"""A platform started from a copy of the checkout, and the table of what documented commands meet instead.

Readers run commands that a test cannot: they install packages, start model servers, or call OpenAI. Each of these is
replaced by something that runs here; nothing is skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from launcher.address import any_free_port
from launcher.postgres import SUPERUSER
from launcher.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
# Programs that only record how they were called.
RECORDED = ("apt-get", "systemctl", "docker", "vllm", "ollama", "llama-server", "nginx", "litellm", "certbot")
# `python3 manage.py up` is what this module has started; `install` and `test` have tests of their own.
_PYTHON = """#!/bin/bash
case "$1 ${2:-}" in
  "manage.py up") echo "python3 $*" >> "$DOCS_CALLS"; cat "$DOCS_TERMINAL" ;;
  "manage.py test"|"manage.py install"|"manage.py web"|"manage.py worker"|"manage.py beat"|"manage.py sandbox")
    echo "python3 $*" >> "$DOCS_CALLS" ;;
  "-m venv")
    "$DOCS_PYTHON" -m venv --without-pip "${@:3}" && target="${@: -1}"
    packages=$("$DOCS_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$packages" > "$(echo "$target"/lib/python3*/site-packages)/docs.pth"
    ln -sf "$DOCS_BIN/pip" "$target/bin/pip" ;;
  *) exec "$DOCS_PYTHON" "$@" ;;
esac
"""
# `pip install NAME` succeeds if the environment of the tests has it, so misspelt and undeclared packages fail.
_PIP = """#!/bin/bash
echo "pip $*" >> "$DOCS_CALLS"
exec "$DOCS_PYTHON" -c 'import sys, importlib.metadata as m
for name in sys.argv[2:]:
    if not name.startswith("-") and name not in {"numpy", "pandas", "matplotlib"}: m.version(name)' "$@"
"""
# Stands in for Ollama, vLLM and llama.cpp: the demo upstream with the names of the models in the documentation.
_MODEL_SERVER = """
import runpy
from demo_upstream import models
models.LISTED += ("qwen3", "qwen3-4b", "llama3.2", "Qwen/Qwen3-8B")
runpy.run_module("demo_upstream", run_name="__main__")
"""
_RECORDER = '#!/bin/bash\necho "$(basename "$0") $*" >> "$DOCS_CALLS"\n'


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The running platform. ``calls`` is the file with the calls of recorded programs."""

    checkout: Path
    environment: Mapping[str, str]
    calls: Path
    substitutions: Mapping[str, str]

    def substitute(self, text: str) -> str:
        """Replace the addresses in a block by those of the servers of the test."""
        for pattern, replacement in self.substitutions.items():
            text = re.sub(pattern, replacement, text)
        return text

    def sql(self, text: str) -> None:
        """Run SQL as the superuser of the private PostgreSQL, as `psql` would."""
        configuration = json.loads((self.checkout / ".run" / "environment.json").read_text())["variables"]
        secrets = json.loads((self.checkout / ".run" / "secrets.json").read_text())
        url = urlsplit(configuration["DATABASE_OWNER_URL"])
        with psycopg.connect(
            host=url.hostname,
            port=url.port,
            dbname=url.path.strip("/"),
            user=SUPERUSER,
            password=secrets["POSTGRES_SUPERUSER_PASSWORD"],
            autocommit=True,
        ) as connection:
            for statement in filter(str.strip, re.sub(r"--.*", "", text).split(";")):
                connection.execute(statement.encode())


@contextmanager
def running_instance(directory: Path) -> Iterator[Instance]:
    """Copy the checkout, start the platform from the copy, and stop it at the end."""
    checkout, stubs = directory / "checkout", directory / "bin"
    _copy(checkout)
    ports = [any_free_port() for _ in range(4)]
    environment = _environment(directory, stubs)
    environment["EGRESS_ALLOW"] = "127.0.0.1"
    terminal = Path(environment["DOCS_TERMINAL"])
    # Without the part of `manage.py up` that installs: the environment is the one of the tests.
    start = (
        "import os, pathlib, sys; from launcher import up; "
        "sys.exit(up.run(root=pathlib.Path.cwd(), host='127.0.0.1', port=int(sys.argv[1]), plain=True,"
        " environment=os.environ))"
    )
    with terminal.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "-c", start, str(ports[0])],
            cwd=checkout,
            env={**environment, "PYTHONPATH": f"{checkout / 'platform'}:{checkout}"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    model_server = subprocess.Popen(
        [sys.executable, "-c", _MODEL_SERVER, "--host", "127.0.0.1", "--port", str(ports[3])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: "Ready." in terminal.read_text() or up.poll() is not None, seconds=START_SECONDS)
        assert "Ready." in terminal.read_text(), terminal.read_text()
        yield Instance(
            checkout=checkout,
            environment=environment,
            calls=Path(environment["DOCS_CALLS"]),
            substitutions={
                r"\b8000\b": str(ports[0]),
                # Servers that pages start themselves.
                r"\b9000\b": str(ports[1]),
                r"\b9001\b": str(ports[2]),
                # Ollama, vLLM, llama.cpp and OpenAI: here the demo upstream, which speaks the same protocol.
                r"127\.0\.0\.1:(?:11434|8001|8080)\b": f"127.0.0.1:{ports[3]}",
                r"https://api\.openai\.com/v1": f"http://127.0.0.1:{ports[3]}/v1",
                # A receiver on the internet.
                r"https://orders\.example\.com": f"http://127.0.0.1:{ports[2]}",
                # The roles and the database of the documentation exist already in the private PostgreSQL.
                r"\b(CREATE ROLE|OWNER|TO) platform_(\w+)": r"\1 documented_\2",
                r"\bDATABASE platform\b": "DATABASE documented",
            },
        )
    finally:
        model_server.kill()
        model_server.wait()
        up.terminate()
        up.wait(timeout=60)


def _copy(checkout: Path) -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(".venv"):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    (checkout / ".venv").symlink_to(sys.prefix)


def _environment(directory: Path, stubs: Path) -> dict[str, str]:
    stubs.mkdir()
    programs = {"python3": _PYTHON, "pip": _PIP, **dict.fromkeys(RECORDED, _RECORDER)}
    for name, text in programs.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "LC_ALL": "C.UTF-8",
        # Keys that readers have.
        "UPSTREAM_API_KEY": "sk-upstream",
        "LITELLM_API_KEY": "sk-litellm",
        "PATH": f"{stubs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DOCS_BIN": str(stubs),
        "DOCS_PYTHON": sys.executable,
        "DOCS_CALLS": str(directory / "calls"),
        "DOCS_TERMINAL": str(directory / "terminal"),
    }
