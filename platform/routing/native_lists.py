"""Details of models from the APIs of Ollama and LM Studio, whose lists for OpenAI's clients contain only names.

The requests load no model and cost nothing. They are only sent to servers whose list has the owner that these servers
state.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from providers.clients import UpstreamFailed, clients_for, get
from providers.event_stream import check_object, read_document
from providers.http_client import RequestFailed
from routing.detection import ModelDetails, Support, contained, tokens
from tenants.directory import UpstreamEndpoint

_OLLAMA, _LM_STUDIO = "library", "organization_owner"
# Each model of Ollama takes a request.
_MAX_SHOWN, _AT_ONCE, _MAX_SECONDS = 50, 8, 3.0
_CONTEXT_PARAMETER = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


async def native_details(
    upstream: UpstreamEndpoint, entries: Sequence[Mapping[str, Any]]
) -> Mapping[str, ModelDetails]:
    """Return the details of the listed models by name; empty for other servers, and if the server takes too long."""
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            return await _details(upstream, entries)
    except TimeoutError:
        return {}


async def _details(upstream: UpstreamEndpoint, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, ModelDetails]:
    owners = {entry.get("owned_by") for entry in entries}
    root = replace(upstream, base_url=upstream.base_url.removesuffix("/v1"))
    if root.base_url == upstream.base_url:
        return {}
    if _OLLAMA in owners:
        return await _of_ollama(root, [entry["id"] for entry in entries[:_MAX_SHOWN]])
    return await _of_lm_studio(root) if _LM_STUDIO in owners else {}


async def _of_ollama(root: UpstreamEndpoint, names: Sequence[str]) -> Mapping[str, ModelDetails]:
    # A loaded model has the context that Ollama was started with; others get it when they are loaded.
    loaded = {
        entry.get("name"): tokens(entry.get("context_length")) for entry in _rows(await _get(root, "/api/ps"), "models")
    }
    limit = asyncio.Semaphore(_AT_ONCE)

    async def details(name: str) -> ModelDetails:
        async with limit:
            shown = await _post(root, "/api/show", {"model": name})
        abilities = shown.get("capabilities")
        parameters = shown.get("parameters")
        context = _CONTEXT_PARAMETER.search(parameters) if isinstance(parameters, str) else None
        tools = contained("tools", abilities)
        return ModelDetails(
            context_window=tokens(int(context[1])) if context else loaded.get(name),
            # Ollama ignores `tool_choice`.
            tools=Support.LIMITED if tools is Support.YES else tools,
            images=contained("vision", abilities),
            reasoning=contained("thinking", abilities),
        )

    return dict(zip(names, await asyncio.gather(*map(details, names)), strict=True))


async def _of_lm_studio(root: UpstreamEndpoint) -> Mapping[str, ModelDetails]:
    rows = _rows(await _get(root, "/api/v0/models"), "data")
    return {
        row["id"]: ModelDetails(
            context_window=tokens(row.get("loaded_context_length")),
            tools=contained("tool_use", row.get("capabilities")),
            images={"vlm": Support.YES, "llm": Support.NO}.get(str(row.get("type")), Support.UNKNOWN),
        )
        for row in rows
        if isinstance(row.get("id"), str)
    }


def _rows(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


async def _get(root: UpstreamEndpoint, path: str) -> Mapping[str, Any]:
    try:
        async with get(root, path) as answer:
            return await read_document(answer, check=check_object)
    except UpstreamFailed:
        return {}


async def _post(root: UpstreamEndpoint, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        answer = await clients_for(root).http.post(path, orjson.dumps(body), silent=True)
        try:
            return await read_document(answer, check=check_object)
        finally:
            await answer.close()
    except (RequestFailed, UpstreamFailed):
        return {}
