"""From the `mcp` tools of a request to servers, and to the one sealed text that a background run keeps of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from kernel import egress
from kernel.crypto import decrypt, encrypt
from kernel.errors import EgressRefused, InvalidValue
from responses.schema.mcp import McpToolParam
from responses.tools.mcp.servers import ApprovalPolicy, RemoteServer, ToolFilter
from tenants import directory
from tenants.principal import Principal


async def servers(tools: Sequence[object], *, principal: Principal) -> list[RemoteServer]:
    """The servers that a request names, with everything that its echo leaves out; the first defect is raised."""
    return [
        await _server(tool, principal=principal, param=f"tools[{index}]")
        for index, tool in enumerate(tools)
        if isinstance(tool, McpToolParam) and not tool.built_in
    ]


def encrypt_servers(found: Sequence[RemoteServer]) -> str:
    """The servers as one encrypted text, for the row of a run that others may have to go on with."""
    return encrypt(orjson.dumps([_kept(server) for server in found]).decode())


def decrypt_servers(text: str, shown: Sequence[Mapping[str, Any]]) -> list[RemoteServer]:
    """The servers out of `encrypt_servers`, with what the response itself shows of them."""
    tools = {tool["server_label"]: tool for tool in shown if tool["type"] == "mcp"}
    kept = orjson.loads(decrypt(text)) if text else []
    return [_as_shown(tools[one.pop("label")], **one) for one in kept]


def _kept(server: RemoteServer) -> dict[str, Any]:
    return {"label": server.label, "url": server.url, "headers": {**server.headers}, "vouched": server.vouched}


async def _server(tool: McpToolParam, *, principal: Principal, param: str) -> RemoteServer:
    url, token = tool.server_url or "", None
    if tool.connector_id is not None:
        connector = await directory.aconnector(principal, tool.connector_id)
        if connector is None:
            message = f"Invalid value: '{tool.connector_id}'. No connector of this name is there for your team."
            raise InvalidValue(message, param=f"{param}.connector_id")
        url, token = connector.url, connector.authorization
        _check(url, egress.default().trusting, param=f"{param}.connector_id")
    else:
        _check(url, egress.default().check, param=f"{param}.server_url")
    vouched = tool.connector_id is not None
    return _as_shown(tool.shown(), url=url, headers=_headers(tool, token), vouched=vouched)


def _headers(tool: McpToolParam, token: str | None) -> dict[str, str]:
    """The client's `authorization` before its header of that name, and both before the connector's own."""
    headers = dict(tool.headers or {})
    own = tool.authorization
    if own is None and not any(name.lower() == "authorization" for name in headers):
        own = token or None
    if own is not None:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {own.removeprefix('Bearer ')}"
    return headers


def _check(url: str, check: Callable[[str], object], *, param: str) -> None:
    try:
        check(url)
    except EgressRefused as refused:
        raise EgressRefused(refused.message, param=param) from refused


def _as_shown(shown: Mapping[str, Any], *, url: str, headers: Mapping[str, str], vouched: bool) -> RemoteServer:
    return RemoteServer(
        label=shown["server_label"],
        url=url,
        headers=headers,
        vouched=vouched,
        description=shown["server_description"],
        allowed=ToolFilter.parse(shown["allowed_tools"]),
        approval=ApprovalPolicy.parse(shown["require_approval"]),
        shown=shown,
    )
