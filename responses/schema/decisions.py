"""Body of `POST /v1/responses/{id}/approvals/{approval_request_id}`."""

from typing import Annotated, Literal

from pydantic import Field

from core.http.wire import Wire


class DecideApproval(Wire):
    """The decision about a call for which a response waits: `approve`, or the `outcome` of an interrupted call."""

    approve: bool | None = None
    outcome: Literal["done", "not_done", "repeat"] | None = None
    result: Annotated[str, Field(max_length=100_000)] | None = None
    reason: Annotated[str, Field(max_length=10_000)] | None = None
