"""Input and output files of batches."""

from collections.abc import Mapping
from typing import Any

import orjson

from tests.support.api import Api, ok
from tests.support.waiting import eventually

URL = "/v1/responses"
ENDS = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, *, url: str = URL, method: str = "POST", **body: Any) -> dict[str, Any]:
    """Return a line of an input file."""
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def jsonl(*lines: Mapping[str, Any] | bytes) -> bytes:
    """Return the content of an input file. Lines given as bytes are not encoded."""
    return b"".join((one if isinstance(one, bytes) else orjson.dumps(one)) + b"\n" for one in lines)


def uploaded(api: Api, *lines: Mapping[str, Any] | bytes, purpose: str = "batch") -> str:
    """Upload an input file and return its id."""
    file = {"file": ("input.jsonl", jsonl(*lines))}
    return str(ok(api.request("POST", "/files", files=file, data={"purpose": purpose}))["id"])


def asked(api: Api, *lines: Mapping[str, Any] | bytes, endpoint: str = URL, **fields: Any) -> dict[str, Any]:
    """Create a batch of these lines."""
    body = {"input_file_id": uploaded(api, *lines), "endpoint": endpoint, "completion_window": "24h", **fields}
    return ok(api.post("/batches", body))


def answers(api: Api, file_id: str | None) -> dict[str, dict[str, Any]]:
    """Return the lines of an output file by `custom_id`."""
    if file_id is None:
        return {}
    content = api.get(f"/files/{file_id}/content").content
    return {entry["custom_id"]: entry for entry in map(orjson.loads, content.splitlines())}


def retrieved(api: Api, batch_id: str) -> dict[str, Any]:
    """Retrieve a batch."""
    return ok(api.get(f"/batches/{batch_id}"))


def ended(api: Api, batch_id: str) -> dict[str, Any]:
    """Wait until the batch has ended and return it."""

    def look() -> dict[str, Any] | None:
        batch = retrieved(api, batch_id)
        return batch if batch["status"] in ENDS else None

    found = eventually(look, seconds=40)
    assert found is not None
    return found
