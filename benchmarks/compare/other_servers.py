"""The other servers: LiteLLM, OGX and agentic-api, installed from their locks and started beside the platform."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.compare import environments, interpreters
from benchmarks.compare.interpreters import Python
from benchmarks.compare.measurements import Contender
from benchmarks.load import Target
from benchmarks.matrix import BURST
from benchmarks.stack import Servers, is_up
from launcher.address import any_free_port
from launcher.errors import LaunchError
from launcher.processes import ChildCommand

LOCKS = Path(__file__).parents[1] / "servers"
GATEWAY_KEY = "sk-benchmark-0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A server from PyPI: its lock, the oldest Python for which the lock was made, and how to start it.

    The command and the environment contain `{bin}`, `{port}`, `{folder}` (writable) and `{upstream}` (without `/v1`).
    `is_python` is false for a server in another language.
    """

    name: str
    lock: str
    oldest: tuple[int, int]
    command: Sequence[str]
    models: Mapping[str, str]
    probe: str
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_python: bool = True

    def python(self) -> Python:
        """Return the interpreter for the server. Raises LaunchError if there is none."""
        python = interpreters.suitable(interpreters.found(), oldest=self.oldest)
        if not python:
            needed = ".".join(map(str, self.oldest))
            message = f"{self.name} {self.version} needs Python {needed} or newer, and none was found."
            raise LaunchError(message)
        return python

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
        oldest=(3, 11),
        command=[
            *("{bin}/agentic-server", "--llm-api-base", "{upstream}", "--openai-api-key", "none"),
            *("--gateway-host", "127.0.0.1", "--gateway-port", "{port}", "--skip-llm-ready-check"),
            *("--db-url", "sqlite://{folder}/agentic.db"),
        ],
        models={"agentic-api": BURST},
        probe="/health",
        is_python=False,
    ),
    Package(
        name="LiteLLM",
        lock="litellm.txt",
        oldest=(3, 11),
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
        oldest=(3, 12),
        command=["{bin}/ogx", "run", "--insecure", "--port", "{port}", str(LOCKS / "ogx.yaml")],
        models={"OGX": f"vllm/{BURST}"},
        probe="/v1/models",
        environment={"UPSTREAM_V1": "{upstream}/v1", "STORE": "{folder}", "OGX_LOGGING": "all=warning"},
    ),
)


def started(package: Package, servers: Servers, *, upstream: str) -> Iterator[Contender]:
    """Start a server and yield it once for each of its ways to answer. Raises LaunchError if it does not start."""
    folder = servers.directory / package.lock.removesuffix(".txt")
    folder.mkdir()
    port = any_free_port()
    programs = environments.installed(
        f"{package.name} {package.version}", lock=LOCKS / package.lock, python=package.python()
    )
    values = {"bin": str(programs), "port": str(port), "folder": str(folder), "upstream": upstream}
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
