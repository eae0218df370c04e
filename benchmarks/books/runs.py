"""Results observed by clients: single runs, and a batch of many lines with a check of its result files."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

TERMINAL = ("completed", "failed", "cancelled", "incomplete")
_ENDED_BATCH = ("completed", "failed", "cancelled", "expired")
_PATH = "/v1/chat/completions"
_POLL_SECONDS = 2.0
_NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(kw_only=True)
class Run:
    """One run as observed by its client. `usage` is the usage of the final response, if one was received.

    `was_left`: the client disconnected or cancelled. `broke`: the connection was lost, for example because a process
    died.
    """

    name: str
    kind: str
    response_id: str = ""
    status: str = ""
    usage: dict[str, Any] | None = None
    is_stored: bool = False
    was_left: bool = False
    broke: bool = False


@dataclass(frozen=True, kw_only=True)
class LargeBatch:
    """A batch of chat completions.

    `url` returns the address of a live web process; requests that fail are repeated until the batch has ended.
    """

    lines: int
    http: aiohttp.ClientSession
    url: Callable[[], str]

    async def faults(self) -> list[str]:
        """Upload, create and await the batch, and return the defects of the batch and its result files."""
        batch = await self._ended(await self._created(await self._uploaded()))
        counts = batch["request_counts"]
        faults = []
        if batch["status"] != "completed":
            faults.append(f"the batch is {batch['status']}: {batch['errors']}")
        answered = Counter[str]()
        for kind, count in (("output", counts["completed"]), ("error", counts["failed"])):
            file_id = batch[f"{kind}_file_id"]
            content = await self._send("GET", f"/v1/files/{file_id}/content") if file_id else b""
            results = [json.loads(line) for line in content.splitlines()]
            if len(results) != count:
                faults.append(f"the {kind} file of the batch has {len(results)} lines, not {count}")
            answered.update(result["custom_id"] for result in results)
            faults += [
                f"{result['custom_id']} of the batch is in the {kind} file: {result}"[:300]
                for result in results
                if _is_success(result) != (kind == "output")
            ]
        expected = {_line_name(number) for number in range(self.lines)}
        faults += [f"{name} of the batch has no result" for name in expected - answered.keys()]
        faults += [f"{name} has {count} results" for name, count in answered.items() if count > 1]
        faults += [f"the unknown line {name} has a result" for name in answered.keys() - expected]
        return faults

    async def _uploaded(self) -> str:
        lines = b"".join(json.dumps(_line(number)).encode() + b"\n" for number in range(self.lines))

        def form() -> aiohttp.FormData:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", lines, filename="batch.jsonl", content_type="application/jsonl")
            return form

        return str(json.loads(await self._send("POST", "/v1/files", form=form))["id"])

    async def _created(self, file_id: str) -> str:
        body = {"input_file_id": file_id, "endpoint": _PATH, "completion_window": "24h"}
        # The key makes a repeated request create one batch only.
        return str(json.loads(await self._send("POST", "/v1/batches", json=body, key="batch"))["id"])

    async def _ended(self, batch_id: str) -> dict[str, Any]:
        while True:
            batch: dict[str, Any] = json.loads(await self._send("GET", f"/v1/batches/{batch_id}"))
            if batch["status"] in _ENDED_BATCH:
                return batch
            await asyncio.sleep(_POLL_SECONDS)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        form: Callable[[], aiohttp.FormData] | None = None,
        key: str = "",
    ) -> bytes:
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            data = form() if form is not None else None
            try:
                async with self.http.request(
                    method, self.url() + path, json=json, data=data, headers=headers
                ) as answer:
                    content = await answer.read()
                    if answer.status == 200:
                        return content
                    if answer.status < 500 and answer.status not in {409, 429}:
                        raise ValueError(f"{method} {path}: {answer.status} {content[:300]!r}")
            except _NETWORK_ERRORS:
                pass
            await asyncio.sleep(_POLL_SECONDS)


def _line_name(number: int) -> str:
    """Return the name of a line, in the form of the requests of the mixed load: `TEAM.THREAD.NUMBER`."""
    return f"batch.{number}.1"


def _line(number: int) -> dict[str, Any]:
    name = _line_name(number)
    messages = [{"role": "user", "content": f"{name} plain"}]
    body = {"model": "m", "messages": messages, "safety_identifier": name}
    return {"custom_id": name, "method": "POST", "url": _PATH, "body": body}


def _is_success(result: dict[str, Any]) -> bool:
    response = result["response"]
    return result["error"] is None and response is not None and response["status_code"] == 200
