"""The samples of the API reference work, and their answers look like its examples."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.api_urls import ENDPOINTS
from server.reference.openapi import operation_id
from server.reference.samples import SAMPLES, Sample
from server.reference.snippets import Snippets
from tests.docs.api_samples import Reader, fits, models, parsed
from tests.docs.blocks import ROOT
from tests.support.api import Api, MakeCaller
from tests.support.programs import need
from tests.support.web import WebProcess
from tests.support.webhooks import running_receiver

pytestmark = pytest.mark.slow
OPERATIONS = {operation_id(endpoint): endpoint for endpoint in ENDPOINTS}
EXAMPLES = ROOT / "platform" / "server" / "reference" / "examples"
NEW = ROOT / ".test-run" / "examples"


def group_of(name: str) -> str:
    """Return the first part of an operation's name: samples of a group use objects of earlier ones."""
    return name.partition(".")[0]


GROUPS = list(dict.fromkeys(map(group_of, SAMPLES)))


@pytest.fixture
def make_reader(
    reaching_web: WebProcess, http: httpx2.Client, make_caller: MakeCaller, no_worker: None, tmp_path: Path
) -> Iterator[Callable[[], Reader]]:
    """Create a reader with a team of its own. No worker changes queued objects."""
    with ExitStack() as stack:

        def make() -> Reader:
            # With options, because callers without them come from a pool.
            api = Api(http, url=reaching_web.url, caller=make_caller(scopes=["*"]))
            url = stack.enter_context(models())
            reader = Reader(api, base_url=f"{reaching_web.url}/v1", model_url=url, folder=tmp_path)
            reader.ids["receiver_url"] = stack.enter_context(running_receiver()).url
            return reader

        yield make


def samples(group: str) -> dict[str, Sample]:
    return {name: sample for name, sample in SAMPLES.items() if group_of(name) == group}


def test_every_operation_has_a_sample() -> None:
    assert SAMPLES.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("group", GROUPS)
def test_curl_samples_get_the_answers_of_the_examples(
    group: str, make_reader: Callable[[], Reader], request: pytest.FixtureRequest
) -> None:
    need("curl", package="curl")
    if group == "containers":
        request.getfixturevalue("sandbox")
    reader = make_reader()
    found: dict[str, Any] = {}
    for name, sample in samples(group).items():
        reader.prepare(name)
        snippets = Snippets(name, OPERATIONS[name], sample, reader.ids)
        printed = reader.curl(snippets.curl())
        if not snippets.is_binary:
            answer = parsed(printed)
            reader.take(sample.gives, answer)
            found[name] = {"answer": parsed(reader.neutral(printed))}
        if sample.streams:
            found[name]["events"] = reader.neutral(reader.curl(snippets.curl(stream=True)))
    stored = EXAMPLES / f"{group}.json"
    examples = json.loads(stored.read_text()) if stored.exists() else {}
    if examples.keys() != found.keys() or not all(fits(examples[name], found[name]) for name in found):
        NEW.mkdir(parents=True, exist_ok=True)
        (NEW / stored.name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        different = [name for name in found if name not in examples or not fits(examples[name], found[name])]
        pytest.fail(f"the answers of {different} differ; if this is right, copy {NEW / stored.name} to {EXAMPLES}")


@pytest.mark.parametrize("group", GROUPS)
def test_python_samples_run(group: str, make_reader: Callable[[], Reader], request: pytest.FixtureRequest) -> None:
    if group == "containers":
        request.getfixturevalue("sandbox")
    reader = make_reader()
    for name, sample in samples(group).items():
        reader.prepare(name)
        snippets = Snippets(name, OPERATIONS[name], sample, reader.ids)
        reader.take(sample.gives, reader.python(snippets.python()))
        if sample.streams:
            reader.python(snippets.python(stream=True))
