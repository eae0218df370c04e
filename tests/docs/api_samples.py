"""A reader who tries the samples of the API reference, with models, a team, keys, files and what else they need."""

import contextlib
import io
import json
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web as aiohttp
from django.contrib.auth.models import User
from openai import BaseModel as OpenAIObject

from demo_upstream.app import create_app
from server.reference.samples import EXAMPLE_IDS, FILES
from tenants import services
from tenants.models import AdminScope
from tests.support.aiohttp_server import serving
from tests.support.api import Api, ok
from tests.support.decisions import add_decision
from tests.support.vector_stores import read_waiting_files, use_demo_embeddings
from tests.support.waiting import eventually

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
OTHERS: dict[str, Any] = {
    "/v1/moderations": {
        "id": "modr-1",
        "model": "omni-moderation-latest",
        "results": [
            {
                "flagged": False,
                "categories": {"violence": False},
                "category_scores": {"violence": 0.01},
                "category_applied_input_types": {"violence": ["text"]},
            }
        ],
    },
    "/v1/completions": {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1764000000,
        "model": "base-model",
        "choices": [{"text": " upon a time", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    },
    "/v1/images/generations": {"created": 1764000000, "data": [{"b64_json": "iVBORw0KGgo="}]},
    "/v1/images/edits": {"created": 1764000000, "data": [{"b64_json": "iVBORw0KGgo="}]},
    "/v1/audio/transcriptions": {"text": "Good day.", "usage": {"type": "duration", "seconds": 1}},
    "/v1/audio/translations": {"text": "Good day."},
}
MODELS = ("demo", "demo-embedding", "omni-moderation-latest", "base-model", "gpt-image-1", "whisper-1", "tts-1")


@contextmanager
def models() -> Iterator[str]:
    """Serve the demo and models of other kinds, and yield the base URL."""
    app = create_app()

    async def answer(request: aiohttp.Request) -> aiohttp.Response:
        await request.read()
        return aiohttp.json_response(OTHERS[request.path])

    async def speak(request: aiohttp.Request) -> aiohttp.Response:
        await request.read()
        return aiohttp.Response(body=b"audio", content_type="audio/mpeg")

    for path in OTHERS:
        app.router.add_post(path, answer)
    app.router.add_post("/v1/audio/speech", speak)
    with serving(app) as url:
        yield url


class Reader:
    """Runs samples one after the other and keeps the ids that they give."""

    def __init__(self, api: Api, *, base_url: str, model_url: str, folder: Path) -> None:
        self._api, self._folder = api, folder
        caller = api.caller
        services.add_upstream(
            name=f"reference {caller.key.pk}", base_url=model_url, models=MODELS, place={"keys": [caller.key.pk]}
        )
        use_demo_embeddings(caller.team, url=model_url)
        # The web process may still have the routes of an earlier reader, whose models have the same names.
        count = {"model": "demo", "input": "Hi"}
        eventually(lambda: api.post("/responses/input_tokens", count).status_code == HTTPStatus.OK)
        name = uuid.uuid4().hex
        self._user = User.objects.create(username=name, email=f"{name}@example.com")
        admin = services.create_admin_key(name="reference", scopes=[AdminScope.ALL.value])
        other = services.create_admin_key(name="other", scopes=[AdminScope.ALL.value])
        self.ids: dict[str, str] = {
            "model": "demo",
            "project_name": name,
            "invited_email": f"invited-{name}@example.com",
            "member_email": self._user.email,
            "user_id": f"user-{self._user.pk}",
            "key_id": other.key.pk,
        }
        self._environment = {
            **os.environ,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": caller.secret,
            "OPENAI_ADMIN_KEY": admin.secret,
        }
        self._secrets = {caller.secret: "sk-example", admin.secret: "sk-admin-example"}
        self._secrets |= {f"reference {caller.key.pk}": "demo", "embedder of libraries": "demo", name: "ada"}
        for path, content in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

    def prepare(self, operation: str) -> None:
        """Create what an operation needs and the samples before it do not create."""
        makers: dict[str, Callable[[], None]] = {
            "responses.approvals.decide": self._ask_for_approval,
            "responses.cancel": self._create_background_response,
            "uploads.cancel": lambda: self._keep("upload_id", self._api.post("/uploads", self._upload())),
            "vector_stores.create": lambda: self._upload_file("file_id", "notes.txt", "user_data"),
            "vector_stores.files.content": read_waiting_files,
            "batches.create": lambda: self._upload_file("batch_file_id", "requests.jsonl", "batch"),
        }
        if operation in makers:
            makers[operation]()

    def _ask_for_approval(self) -> None:
        decision = add_decision(self._api.caller)
        self.ids |= {"response_id": decision.response_id, "approval_request_id": decision.pk}

    def _create_background_response(self) -> None:
        self._keep("response_id", self._api.post("/responses", {"model": "demo", "input": "Hi", "background": True}))

    def _upload(self) -> dict[str, Any]:
        return {"filename": "a.txt", "purpose": "user_data", "bytes": 1, "mime_type": "text/plain"}

    def _upload_file(self, name: str, file: str, purpose: str) -> None:
        files = {"file": (file, FILES[file])}
        self._keep(name, self._api.request("POST", "/files", data={"purpose": purpose}, files=files))

    def _keep(self, name: str, answer: Any) -> None:
        self.ids[name] = ok(answer)["id"]

    def curl(self, command: str) -> str:
        """Run a curl command and return what it prints."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("curl ", "curl --silent --show-error ", 1)],
            cwd=self._folder, env=self._environment, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout!r}\n{done.stderr!r}"
        return done.stdout.decode()

    def python(self, program: str) -> Any:
        """Run a program and return its `answer` as JSON."""
        namespace: dict[str, Any] = {}
        before = dict(os.environ)
        try:
            os.environ.update(self._environment)
            with contextlib.chdir(self._folder), contextlib.redirect_stdout(io.StringIO()):
                exec(compile(program, "sample", "exec"), namespace)
        finally:
            os.environ.clear()
            os.environ.update(before)
        answer = namespace.get("answer")
        return answer.to_dict() if isinstance(answer, OpenAIObject) else answer

    def take(self, gives: Any, answer: Any) -> None:
        """Keep the ids that an answer gives."""
        for name, path in gives.items():
            value = answer
            for step in path.split("."):
                value = value[int(step)] if step.isdigit() else value[step]
            self.ids[name] = str(value)

    def neutral(self, text: str) -> str:
        """Return an answer with the ids of the documentation, and without secrets and times."""
        for name, value in sorted(self.ids.items(), key=lambda pair: -len(pair[1])):
            if name not in {"model", "version"}:
                text = text.replace(value, EXAMPLE_IDS[name])
        for secret, shown in self._secrets.items():
            text = text.replace(secret, shown)
        text = re.sub(r"\b(sk|whsec)[-_][\w+/=-]{20,}", r"\1-example", text)
        text = re.sub(r"\b1[789]\d{8}\b", "1764000000", text)
        text = re.sub(r"http://127\.0\.0\.1:\d+", "https://api.example.com", text)
        text = re.sub(r"\bteam [0-9a-f]{32}\b", "research", text)
        numbers: dict[str, str] = {}

        def rename(found: re.Match[str]) -> str:
            if found[0] in EXAMPLE_IDS.values():
                return found[0]
            return numbers.setdefault(found[0], f"{found[1]}_01a22d13d7{len(numbers):018d}")

        return re.sub(r"\b([a-z]+)[_-](?=\w*\d)[0-9a-z]{24,}\b", rename, text)


def fits(example: Any, answer: Any) -> bool:
    """Return whether an answer has the form of the example: names and types, with null for any value."""
    match example, answer:
        case None, _:
            return True
        case _, None:
            return True
        case dict(), dict():
            return example.keys() == answer.keys() and all(fits(example[key], answer[key]) for key in example)
        case list(), list():
            return all(any(fits(one, other) for one in example) for other in answer) or not example
        case ((int() | float()), (int() | float())):
            return True
        case _:
            return type(example) is type(answer)


def parsed(text: str) -> Any:
    """Return the JSON of a text, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
