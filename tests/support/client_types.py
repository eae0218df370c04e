"""Checks of JSON from the API against what clients in JavaScript accept: openai-node's types, the AI SDK's schemas.

Unlike those of openai-python, the types of openai-node define whether a key may be null or must be omitted.
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from typing_extensions import override

from tests.support.clients import client


def _nulls(kind: str, message: str, *places: str) -> dict[tuple[str, str, str], str]:
    events = [(f"ResponseStreamEvent/response/{place}" for place in places)] if kind == "Response" else []
    names = [*(f"{kind}/{place}" for place in places), *(name for group in events for name in group)]
    return {("openai_node", name, message): "OpenAI returns null" for name in names}


DEVIATIONS: Mapping[tuple[str, str, str], str] = {
    **_nulls("Batch", "must be number", "completed_at", "expired_at", "failed_at", "finalizing_at", "in_progress_at"),
    **_nulls("Batch", "must be number", "cancelled_at", "cancelling_at", "expires_at"),
    **_nulls("Batch", "must be string", "error_file_id", "output_file_id"),
    **_nulls("Batch", "must be object", "errors"),
    **_nulls("FileObject", "must be number", "expires_at"),
    **_nulls("FileObject", "must be string", "status_details"),
    **_nulls("VectorStore", "must be object", "expires_after"),
    **_nulls("Response", "must be string", "user", "text/format/description"),
    **_nulls("Response", "must be object", "usage"),
    **{
        ("openai_node", name, "must have required property 'output_text'"): "the SDK adds it to what it has received"
        for name in ("Response", "ResponseStreamEvent/response")
    },
    **{
        ("openai_node", f"{name}/error{place}", message): "the codes of failed responses are those of failed requests"
        for name in ("Response", "ResponseStreamEvent/response")
        for place, message in (
            ("", "must be null"),
            ("", "must match a schema in anyOf"),
            ("/code", "must be equal to one of the allowed values"),
        )
    },
    ("openai_node", "FileObject/purpose", "must be equal to one of the allowed values"): (
        "files can be uploaded for evals, but the type of the result lacks that purpose"
    ),
    ("vercel", "Response/error/type", "Invalid input: expected string, received undefined"): (
        "the error of a failed response has only a code and a message; the SDK raises an error in both cases"
    ),
}
"""Intended deviations from a client's types: the defect, and the reason."""


@dataclass(frozen=True)
class Shape:
    """A body and the name of its type in openai-node, or `ResponseStream` for the events of a stream."""

    type: str
    body: Any


@dataclass(frozen=True)
class Rejection:
    """A part of a body that a client does not accept."""

    client: str
    type: str
    path: str
    message: str
    body: Any

    @property
    def defect(self) -> tuple[str, str, str]:
        """The client, the place without indexes, and the message."""
        place = re.sub(r"/\d+", "/*", self.path)
        return self.client, f"{self.type}{place}", self.message.partition(" {")[0]

    @override
    def __str__(self) -> str:
        value = self.body
        for key in self.path.strip("/").split("/")[:-1]:
            if isinstance(value, list) and not key.isdecimal():
                break  # The AI SDK reads the events one by one.
            value = value[int(key)] if isinstance(value, list) else value[key]
        return f"{self.defect}: {self.message}\n    {json.dumps(value)[:300]}"


def rejections(shapes: Sequence[Shape]) -> str:
    """Return the parts that the clients do not accept, each defect once, with its object."""
    of_node = [single for shape in shapes for single in _single(shape)]
    of_vercel = [shape for shape in shapes if shape.type in {"Response", "ResponseStream"}]
    found = {one.defect: one for one in _check("openai_node", of_node) + _check("vercel", of_vercel)}
    return "\n".join(sorted(str(one) for key, one in found.items() if key not in DEVIATIONS))


def _single(shape: Shape) -> list[Shape]:
    if shape.type != "ResponseStream":
        return [shape]
    # The SDK raises the event `error` instead of returning it; OpenAI nests the fields that its type has flat.
    return [Shape("ResponseStreamEvent", event) for event in shape.body if event["type"] != "error"]


def _check(name: str, shapes: Sequence[Shape]) -> list[Rejection]:
    if not shapes:
        return []
    with tempfile.NamedTemporaryFile(suffix=".ndjson") as file:
        for shape in shapes:
            file.write(orjson.dumps({"type": shape.type, "body": shape.body}, option=orjson.OPT_APPEND_NEWLINE))
        file.flush()
        found = json.loads(client(name).call("node", "check.mjs", str(Path(file.name)), environment={}))
    return [
        Rejection(
            client=name,
            type=defect["type"],
            path=defect["path"],
            message=defect["message"],
            body=shapes[defect["line"]].body,
        )
        for defect in found
    ]
