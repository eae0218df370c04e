"""Body of `POST /v1/responses/{id}/approvals/{approval_request_id}`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from core.http.wire import Wire


class DecideApproval(Wire):
    """The decision about a call for which a response waits.

    It is `approve`, the `outcome` of an interrupted call, or the `action` with which a question of a tool is answered.
    """

    approve: bool | None = None
    outcome: Literal["done", "not_done", "repeat"] | None = None
    result: Annotated[str, Field(max_length=100_000)] | None = None
    action: Literal["accept", "decline", "cancel"] | None = None
    content: dict[str, Any] | None = None
    reason: Annotated[str, Field(max_length=10_000)] | None = None
