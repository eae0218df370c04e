"""Converts the `mcp` tools of a request to servers, and encrypts the secrets that a background run needs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from core import egress
from core.crypto import decrypt, encrypt
from core.errors import EgressRefused, InvalidValue
from tenants import directory
from tenants.principal import Principal
from tools.mcp.schema import McpToolParam
from tools.mcp.servers import ApprovalPolicy, RemoteServer, ToolFilter


async def servers(tools: Sequence[object], *, principal: Principal) -> list[RemoteServer]:
    """Return the servers that a request names, including the secrets the response does not show.

    Raises the API error of the first invalid tool.
    """
    return [
        await _server(tool, principal=principal, param=f"tools[{index}]")
        for index, tool in enumerate(tools)
        if isinstance(tool, McpToolParam) and not tool.built_in
    ]


_DECLARATIONS = ("always_asks", "waits", "honours_effect_ids")


def encrypt_servers(found: Sequence[RemoteServer]) -> str:
    """Encrypt the servers for the row of a background run, which another worker may have to resume."""
    kept = [
        {
            "label": server.label,
            "url": server.url,
            "headers": {**server.headers},
            "vouched": server.vouched,
            # Workers of the former release know no declarations, so that only those that were made are stored.
            **{name: True for name in _DECLARATIONS if getattr(server, name)},
        }
        for server in found
    ]
    return encrypt(orjson.dumps(kept).decode())


def decrypt_servers(text: str, shown: Sequence[Mapping[str, Any]]) -> list[RemoteServer]:
    """Return the servers from `encrypt_servers`, combined with the tools as the response shows them."""
    tools = {tool["server_label"]: tool for tool in shown if tool["type"] == "mcp"}
    kept = orjson.loads(decrypt(text)) if text else []
    return [_as_shown(tools[fields.pop("label")], **fields) for fields in kept]


async def _server(tool: McpToolParam, *, principal: Principal, param: str) -> RemoteServer:
    url, token, declared = tool.server_url or "", None, dict[str, bool]()
    if tool.connector_id is not None:
        connector = await directory.connector.aget(principal.team_id, tool.connector_id)
        if connector is None:
            raise InvalidValue(
                f"Invalid value: '{tool.connector_id}'. Your team has no connector with this id.",
                param=f"{param}.connector_id",
            )
        url, token = connector.url, connector.authorization
        declared = {
            "always_asks": connector.requires_approval,
            "waits": connector.waits_for_approval,
            "honours_effect_ids": connector.honours_effect_ids,
        }
        # An operator chose the connector's address, so it may be a private one.
        _check(url, egress.default().trusting, param=f"{param}.connector_id")
    else:
        _check(url, egress.default().check, param=f"{param}.server_url")
    headers = _headers(tool, token)
    return _as_shown(tool.shown(), url=url, headers=headers, vouched=tool.connector_id is not None, **declared)


def _headers(tool: McpToolParam, token: str | None) -> dict[str, str]:
    # Precedence: the `authorization` parameter, an Authorization header of the client, the connector's own token.
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


def _as_shown(
    shown: Mapping[str, Any],
    *,
    url: str,
    headers: Mapping[str, str],
    vouched: bool,
    # Missing in rows of earlier releases.
    **declared: bool,
) -> RemoteServer:
    return RemoteServer(
        label=shown["server_label"],
        url=url,
        headers=headers,
        vouched=vouched,
        **declared,
        description=shown.get("server_description"),
        allowed=ToolFilter.parse(shown["allowed_tools"]),
        approval=ApprovalPolicy.parse(shown["require_approval"]),
        shown=shown,
    )
