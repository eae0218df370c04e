"""`python -m benchmarks deployment-docs`: the documentation of a deployment with systemd, typed as printed.

From an empty Debian to a deployment with TLS, metrics, an alert that fires when the upstream stops, backups, an upgrade
and the ways back: every block of docs/howto/deploy.md (systemd) and docs/howto/upgrade.md is typed in its order, in one
root shell. Only values that the pages leave to the reader are replaced: the repository, and the model server, which is
the demo upstream. There is no public certificate authority, so Caddy issues the certificate. The next version is
created here: it has another version number and one additional migration.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.debian_machine import Failed, Shell, running_machine
from launcher.address import any_free_port, is_free
from launcher.errors import LaunchError

ROOT = Path(__file__).resolve().parents[1]
HOST = "api.example.com"
PORTS = (80, 443, 2019, 5432, 6379, 8000, 8090, 9090, 9093, 9466, 9471, 9472)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVED = re.compile(r"saved as `([^`]+)`:\s*$")
_PASSWORD = "Correct-horse-7"
_ANSWERS = {
    "Username": "admin",
    "Email address": "admin@example.com",
    "Password: ": _PASSWORD,
    "(again)": _PASSWORD,
}
_MIGRATION = """
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]
    operations = [migrations.RunSQL("CREATE TABLE next_release (id integer)", "DROP TABLE next_release")]
"""


class Reader:
    """An operator who types the blocks of a page."""

    def __init__(self, shell: Shell, values: dict[str, str]) -> None:
        self.shell, self._values = shell, values
        self.typed = 0

    def follow(self, page: str, *headings: str) -> None:
        """Type the blocks below the headings of a page, and compare their output with the blocks that show output."""
        text = (ROOT / "docs" / "howto" / page).read_text()
        for heading in headings:
            printed = ""
            for language, block, saved in _blocks(_section(text, heading)):
                print(f"  {page}: {heading}: {block.splitlines()[0][:90]}", flush=True)
                if saved:
                    self.shell.type(f"cat > {saved} <<'END-OF-FILE'\n{block}END-OF-FILE")
                elif language == "bash":
                    printed = self.shell.type(self._with_values(block), answers=_ANSWERS)
                    self.typed += 1
                elif language == "text" and block not in printed:
                    raise Failed(f"{page} shows\n{block}\nand this was printed:\n{printed}")

    def _with_values(self, block: str) -> str:
        """Replace the values that the first block sets by the values of this run."""
        for name, value in self._values.items():
            block = re.sub(rf"^export {name}=.*$", f"export {name}={value}", block, flags=re.MULTILINE)
        return block

    def create(self) -> bool:
        """Send a request through TLS and return whether it got an answer of the model."""
        body = json.dumps({"model": "demo", "input": "Say hello."})
        answer = self.shell.type(
            'curl --silent "$OPENAI_BASE_URL/responses" --header "Authorization: Bearer $OPENAI_API_KEY"'
            f" --header 'Content-Type: application/json' --data '{body}' || true"
        )
        return '"status":"completed"' in answer.replace(" ", "")

    def listing(self) -> str:
        """Return the list of stored responses as the API answers it."""
        return self.shell.type(
            'curl --silent --fail "$OPENAI_BASE_URL/responses?limit=100"'
            ' --header "Authorization: Bearer $OPENAI_API_KEY"'
        )


def _section(text: str, heading: str) -> str:
    """Return the text between a heading and the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LaunchError(f"The documentation has no section {heading!r} any more.")
    return found[1]


def _blocks(section: str) -> list[tuple[str, str, str]]:
    """Return language, text, and the file that it is saved as, of each block."""
    found = []
    for match in _FENCE.finditer(section):
        saved = _SAVED.search(section[: match.start()].rstrip() + "\n")
        found.append((match[1], match[2], saved[1] if saved else ""))
    return found


def main(argv: Sequence[str], *, directory: Path) -> int:
    """Follow the documentation and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks deployment-docs", description=__doc__)
    parser.parse_args(argv)
    if taken := [port for port in PORTS if not is_free(host="127.0.0.1", port=port)]:
        raise LaunchError(f"The deployment needs these ports of this machine, which are in use: {taken}.")
    began = time.monotonic()
    with ExitStack() as stack:
        root, shell = stack.enter_context(running_machine(suite="trixie", hosts={HOST: "127.0.0.1"}))
        print(f"An empty Debian with systemd after {time.monotonic() - began:.0f} s", flush=True)
        _make_repository(directory / "repository", copy=root / "srv" / "repository")
        # Tools that read all code of this checkout would read that repository as well.
        shutil.rmtree(directory)
        port = any_free_port()
        upstream = _start_upstream(port)
        stack.callback(lambda: _end(upstream))
        reader = Reader(
            shell,
            {
                "REPOSITORY": "/srv/repository",
                "UPSTREAM_URL": f"http://127.0.0.1:{port}/v1",
                "MODEL": "demo",
            },
        )
        try:
            reader.follow("deploy.md", "systemd", "TLS", "Metrics and alerts")
            _end(upstream)
            seconds = _wait_for_alert(reader, "firing")
            upstream = _start_upstream(port)
            _wait(reader.create, "an answer after the upstream has come back")
            _wait_for_alert(reader, "")
            print(f"  the alert fired {seconds:.0f} s after the upstream had stopped, and ended", flush=True)
            _keep_and_change(reader)
        except Failed as failed:
            print(failed, file=sys.stderr)
            print(shell.type("journalctl --no-pager --lines=80 --priority=info || true"), file=sys.stderr)
            return 1
    print(f"{reader.typed} blocks work as printed, in {time.monotonic() - began:.0f} s")
    return 0


def _keep_and_change(reader: Reader) -> None:
    """Follow the pages about backups and upgrades, which keep everything that is stored. Raises `Failed`."""
    stored = reader.listing()
    reader.follow("deploy.md", "Backups")
    if reader.listing() != stored:
        raise Failed("The restored platform lists other responses than before.")
    reader.follow("upgrade.md", "With systemd")
    _expect_version(reader, "0.2.1")
    reader.follow("upgrade.md", "Go back")
    _expect_version(reader, "0.2.0")
    if reader.listing() != stored or not reader.create():
        raise Failed("The platform does not work as before after the way back.")


def _make_repository(repository: Path, *, copy: Path) -> None:
    """Make a repository with this version as v0.2.0 and the next one as v0.2.1, and copy it into the machine."""
    subprocess.run(["git", "clone", "--quiet", ROOT, repository], check=True)

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=Release", "-c", "user.email=release@example.com"]
        subprocess.run(["git", "-C", repository, *identity, *arguments], check=True)

    project = repository / "pyproject.toml"
    for version in ("0.2.0", "0.2.1"):
        project.write_text(
            re.sub(r'^version = ".*"', f'version = "{version}"', project.read_text(), count=1, flags=re.MULTILINE)
        )
        if version == "0.2.1":
            (repository / "tenants/migrations/0002_next_release.py").write_text(_MIGRATION)
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", f"Release {version}.")
        git("tag", f"v{version}")
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", repository, copy], check=True)


def _start_upstream(port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "demo_upstream", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT / "platform", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait(lambda: not is_free(host="127.0.0.1", port=port), "the demo upstream")
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait(10)


def _wait(condition: Callable[[], bool], name: str, *, seconds: float = 180) -> float:
    """Wait for a condition and return the seconds it took. Raises `Failed`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise Failed(f"There was not {name} after {seconds:.0f} s.")
        time.sleep(1)
    return time.monotonic() - began


def _wait_for_alert(reader: Reader, state: str) -> float:
    """Wait until the alert of a stopped upstream has this state in Prometheus and Alertmanager; "" means no alert."""

    def is_reached() -> bool:
        if state:
            reader.create()
        asked = reader.shell.type(
            """promtool query instant http://127.0.0.1:9090 'ALERTS{alertname="OrsUpstreamStopped"}'"""
        )
        sent = reader.shell.type("amtool alert query --alertmanager.url=http://127.0.0.1:9093")
        if state:
            return f'alertstate="{state}"' in asked and "OrsUpstreamStopped" in sent
        return "alertstate" not in asked and "OrsUpstreamStopped" not in sent

    return _wait(is_reached, f"the alert in the state {state or 'ended'}", seconds=600)


def _expect_version(reader: Reader, version: str) -> None:
    answer = reader.shell.type(f"curl --silent --fail https://{HOST}/version")
    if f'"{version}"' not in answer:
        raise Failed(f"Version {version} does not run: {answer}")
