"""Every command and program of README.md and docs/ is run as printed and has the documented output.

Each page is followed from top to bottom in a session of its own, against one platform that runs from a copy of the
checkout. `tests/docs/instance.py` has a table of commands that cannot run in a test, and their replacements.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.instance import Instance, node_variables, running_instance
from tests.docs.inventory import is_followed
from tests.docs.session import Session, shows
from tests.support.programs import need

pytestmark = pytest.mark.slow

FOLLOWED = [page for page in PAGES if is_followed(str(page.relative_to(ROOT)))]


# Steps after a page whose code only defines functions.
AFTERWARDS = {
    # Sent by the platform, twice: the page says that an event may arrive again.
    "webhooks.md": """
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

statuses = []

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for secret in (rotated.signing_secret, rotated.signing_secret, "whsec_c2VjcmV0"):
            statuses.append(receive(body, dict(self.headers), secret))
        self.send_response(statuses[0])
        self.end_headers()

server = HTTPServer(("127.0.0.1", 9001), Receiver)
Thread(target=server.serve_forever, daemon=True).start()
assert client.webhooks.test(endpoint.id, event_type="response.completed").status_code == 200
server.shutdown()
assert statuses == [200, 200, 400], statuses
assert len(seen) == 1, seen
""",
}


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    """The platform that readers have started. The account of the database can enter its directory."""
    directory = ROOT / ".test-run" / f"docs-{os.getpid()}"
    directory.mkdir(parents=True)
    try:
        with running_instance(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def variables(instance: Instance) -> dict[str, str]:
    """Return the environment of a reader: the key and the address are set in the terminal, as the README says."""
    key = (instance.checkout / ".run" / "demo-key").read_text().strip()
    base_url = instance.substitute("http://127.0.0.1:8000/v1")
    return {**instance.environment, "OPENAI_API_KEY": key, "OPENAI_BASE_URL": base_url}


# Where readers begin. The other pages are followed every night.
_FIRST = {"README.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[] if page.name in _FIRST else pytest.mark.nightly)
        for page in FOLLOWED
    ],
)
def test_the_page_works_as_printed(instance: Instance, page: Path, tmp_path: Path) -> None:
    if page.name == "code-interpreter.md":
        need("bwrap", package="bubblewrap")
    environment = variables(instance)
    if any(one.language == "javascript" for one in blocks(page)):
        environment |= node_variables(environment)
    session = Session(directory=instance.checkout, scratch=tmp_path / "session", environment=environment)
    printed = ""
    try:
        for block in blocks(page):
            text = instance.substitute(block.text)
            try:
                if block.file:
                    session.save(block.file, text)
                elif block.excerpt_of or block.is_diagram:
                    continue  # compared with its module by test_blocks; a drawing
                elif block.language == "bash":
                    printed = session.bash(text)
                elif block.language == "python":
                    printed = session.python(text, name=str(block))
                elif block.language == "sql":
                    instance.sql(text)
                elif block.language == "text":
                    assert shows(printed, text), f"documented:\n{text}\nprinted:\n{printed}"
            except AssertionError as failure:
                raise AssertionError(f"{block}: {failure}") from None
        key, base_url = environment["OPENAI_API_KEY"], environment["OPENAI_BASE_URL"]
        instance.check_upstreams(OpenAI(base_url=base_url, api_key=key, max_retries=0))
        if page.name in AFTERWARDS:
            session.python(instance.substitute(AFTERWARDS[page.name]), name="afterwards")
    finally:
        session.close()
        instance.forget_upstreams()


def test_the_program_that_checks_a_deployment_works(instance: Instance, tmp_path: Path) -> None:
    environment = {**variables(instance), "MODEL": "demo"}
    session = Session(directory=instance.checkout, scratch=tmp_path / "session", environment=environment)
    [program] = [block.text for block in blocks(ROOT / "docs/howto/deploy.md") if block.language == "python"]
    [documented] = [block.text for block in blocks(ROOT / "docs/howto/deploy.md") if block.language == "text"]
    try:
        assert shows(session.python(program, name="check.py"), documented)
    finally:
        session.close()
