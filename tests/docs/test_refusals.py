"""Requests that pages call unavailable are sent, and such statements stand only in tables that are tested."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.reference.sdk_comparison import gaps
from tenants import scope
from tenants.models import Team
from tests.docs.blocks import PAGES, ROOT
from tests.docs.refusals import STATEMENT, Refusal, matches, passages, refusals
from tests.docs.status_claims import TESTS, claims
from tests.support.api import Api, ok
from tests.support.chunks import text
from tests.support.upstream import Script, stream
from tests.support.waiting import PATIENCE
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

REFUSALS = [refusal for page in PAGES for refusal in refusals(page)]
MESSAGES = [{"role": "user", "content": "Hi"}]
# Fields that every request of an endpoint needs, beside `model`.
NEEDED: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/images/generations": {"prompt": "A cat"},
}

# Statements outside of such tables, each with the test that shows it.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "docs/concepts/packages.md": {
        "Nothing is ignored silently.": "tests/api/server/test_coverage.py::test_the_manual_has_every_parameter",
        "or refused with 400": "tests/api/server/test_coverage.py::test_refused_parameters_are_refused_by_name",
    },
    "docs/howto/batches.md": {
        "`…` is refused": "tests/api/gateway/test_batch_runs.py::test_a_batch_writes_an_output_file_and_an_error_file",
    },
    "docs/howto/usage.md": {
        "refused": "tests/storage/test_reconcile.py::test_rejected_requests_may_be_missing_in_the_invoice",
    },
    "docs/reference/errors.md": {
        "Refused": "tests/admin/test_admin_refused.py::test_a_refused_request_is_listed_with_code_key_and_id",
    },
    "docs/reference/api-coverage.md": {
        "rejected": "tests/api/server/test_coverage.py::test_refused_parameters_are_refused_by_name",
    },
    "docs/reference/unavailable.md": {
        "What is not available": "tests/docs/test_refusals.py::test_the_request_of_a_row_gets_its_answer",
        "this server does not have": "tests/docs/test_refusals.py::test_the_request_of_a_row_gets_its_answer",
        "Accepted without effect": "tests/docs/test_refusals.py::test_the_request_of_a_row_gets_its_answer",
    },
}
# Decisions have reasons and tests of their own; a generated page and measurements state nothing about the API.
NOT_ABOUT_THE_API = {"decisions.md", "commands.md", "performance.md"}
_TEST = re.compile(r"tests/[\w/]+\.py::test_\w+")


class Objects:
    """The objects that rows name, created when they are needed."""

    def __init__(self, api: Api, model: str) -> None:
        self._api, self._model = api, model
        self._ids: dict[str, str] = {}
        self._makers: dict[str, Callable[[], str]] = {
            "response_id": lambda: self._api.create(model=model, input="Hi")["id"],
            "vector_store_id": self._vector_store,
            "conversation_id": lambda: self._made("/conversations", items=MESSAGES),
            "item_id": lambda: ok(self._api.get(f"/conversations/{self.id('conversation_id')}/items"))["first_id"],
        }

    def id(self, name: str) -> str:
        """Return the id of the object of this name."""
        if name not in self._ids:
            self._ids[name] = self._makers[name]()
        return self._ids[name]

    def _vector_store(self) -> str:
        team = self._api.caller.team
        with scope.team(team.pk):
            Team.objects.filter(pk=team.pk).update(embedding_model=self._model)
        return self._made("/vector_stores")

    def _made(self, path: str, **body: Any) -> str:
        made: str = ok(self._api.post(path, body))["id"]
        return made

    def insert(self, value: Any) -> Any:
        """Return a path or a body with ids in place of names in braces."""
        match value:
            case str():
                for name in self._makers:
                    if f"{{{name}}}" in value:
                        value = value.replace(f"{{{name}}}", self.id(name))
                return value
            case dict():
                return {key: self.insert(inner) for key, inner in value.items()}
            case list():
                return [self.insert(inner) for inner in value]
            case _:
                return value


@pytest.mark.parametrize("row", REFUSALS, ids=str)
def test_the_request_of_a_row_gets_its_answer(row: Refusal, web: WebProcess, api: Api, script: Script) -> None:
    script.always(stream(*text("Hello")))
    objects = Objects(api, script.model)
    body = None
    if row.body is not None:
        body = {"model": script.model, **NEEDED[row.path], **row.body} if row.path in NEEDED else row.body
    body = objects.insert(body)
    if row.method == "WEBSOCKET":
        fields = NEEDED[row.path] if "type" in row.body else body
        request = {"type": "response.create", "model": script.model, **fields}
        answer = answer_of_socket(web, api.caller.secret, row.body, request=request)
    else:
        answer = answer_of(web, row, headers={**api.headers, **row.headers}, path=objects.insert(row.path), body=body)
    *found, message = answer
    assert tuple(found) == (row.status, row.code, row.param)
    assert matches(message, row.message or "…"), message


def answer_of(web: WebProcess, row: Refusal, *, headers: Any, path: str, body: Any) -> tuple[int, Any, Any, str]:
    """Send a request and return the status, the code, the parameter and the message of its answer."""
    answer = httpx2.request(row.method, web.url + path, headers=headers, json=body, timeout=PATIENCE)
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    error = answer.json().get("error") or {} if answer.is_error and is_json else {}
    return answer.status_code, error.get("code"), error.get("param"), error.get("message") or ""


def answer_of_socket(
    web: WebProcess, secret: str, event: dict[str, Any], *, request: dict[str, Any]
) -> tuple[int, Any, Any, str]:
    """Send an event of another type, or a request, and return status, code, parameter and message."""
    with open_socket(web.url, secret=secret) as socket:
        if "type" in event:
            socket.send(event)
        if event.get("type") != "response.steer":
            # An event without effect gets no answer, but the next request does.
            socket.send(request)
        last = socket.rest()[-1]
    failed = last.get("error") or {}
    return (
        last.get("status", 400 if failed else 200),
        failed.get("code"),
        failed.get("param"),
        failed.get("message", ""),
    )


@pytest.mark.slow
def test_every_endpoint_of_the_sdk_that_is_missing_is_called(api: Api, admin_api: Api, web: WebProcess) -> None:
    statuses = {}
    for name in gaps():
        method, _, path = name.partition(" ")
        if ": " in name:
            continue  # a parameter or a value: `test_coverage` compares those of responses with the server
        headers = (admin_api if path.startswith("/organization") else api).headers
        url = f"{web.url}/v1" + re.sub(r"{\w+}", "x", path)
        statuses[name] = httpx2.request(method, url, headers=headers, timeout=PATIENCE).status_code
    assert len(statuses) > 100
    assert {name: status for name, status in statuses.items() if status not in {404, 405}} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_statements_about_what_is_unavailable_stand_in_tested_tables(page: Path) -> None:
    if page.name in NOT_ABOUT_THE_API:
        return
    exceptions = EXCEPTIONS.get(str(page.relative_to(ROOT)), {})
    lines, used, wrong = page.read_text().split("\n"), set(), []
    for passage in passages(page):
        # A row may name a test of its own, as those of the threat model do.
        if passage.is_tested or _TEST.search(lines[passage.line - 1]):
            continue
        text = passage.text
        for fragment in exceptions:
            if fragment in text:
                used.add(fragment)
                text = text.replace(fragment, "")
        if statement := STATEMENT.search(text):
            wrong.append(f"{page.name}:{passage.line}: {statement[0]!r} in {text!r}")
    assert not wrong, "move them to a table with a request and its answer: " + "; ".join(wrong)
    assert used == exceptions.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_sentence_with_a_status_of_4xx_has_a_test(page: Path) -> None:
    found = [] if page.name in NOT_ABOUT_THE_API or page.parent.name == "api" else list(claims(page))
    listed = TESTS.get(str(page.relative_to(ROOT)), [])
    assert len(found) == len(listed), f"list their tests in tests/docs/status_claims.py: {found}"


@pytest.mark.parametrize(
    "test",
    sorted(
        {test for tests in EXCEPTIONS.values() for test in tests.values()}
        | {test for tests in TESTS.values() for test in tests}
    ),
)
def test_exceptions_name_tests_that_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("Audio is not available.", True),
        ("| audio | unavailable |", True),
        ("This server has no rate limits of its own yet.", True),
        ("`tunnel_id` is refused.", True),
        ("Prompts cannot be created through the API.", True),
        ("| audio | `POST /v1/nothing` | 404 |", False),
        ("[What is not available](../reference/unavailable.md)", False),
        ("The answer is a list.", False),
    ],
)
def test_a_statement_is_found_in_text_and_in_other_tables(tmp_path: Path, statement: str, is_found: bool) -> None:
    page = tmp_path / "page.md"
    cells = statement.count("|") - 1
    head = "| what | request | answer |" if cells == 3 else "| what | state |"
    page.write_text(f"{head}\n|{'---|' * cells}\n{statement}\n" if cells > 0 else statement)
    assert any(STATEMENT.search(one.text) for one in passages(page) if not one.is_tested) == is_found
