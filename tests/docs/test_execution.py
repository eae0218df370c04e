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
from tests.docs.session import Session, shows
from tests.support.programs import need

pytestmark = pytest.mark.slow

# Their commands change the machine: accounts, services and files below /etc. tests/deployment/ uses what they install.
_CHANGE_THE_MACHINE = {"deploy.md", "upgrade.md"}
FOLLOWED = [
    page
    for page in PAGES
    if page.name not in _CHANGE_THE_MACHINE
    and page.parent.name != "api"  # test_api_reference runs the samples of the API reference
    and any(one.language in {"bash", "python", "sql"} for one in blocks(page))
]


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
    key = (instance.checkout / ".run" / "demo-key").read_text().strip()
    base_url = instance.substitute("http://127.0.0.1:8000/v1")
    # Set in the terminal of the reader, as the README says.
    environment = {**instance.environment, "OPENAI_API_KEY": key, "OPENAI_BASE_URL": base_url}
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
        instance.check_upstreams(OpenAI(base_url=base_url, api_key=key, max_retries=0))
        if page.name in AFTERWARDS:
            session.python(instance.substitute(AFTERWARDS[page.name]), name="afterwards")
    finally:
        session.close()
        instance.forget_upstreams()
