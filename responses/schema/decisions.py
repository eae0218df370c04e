"""Body of `POST /v1/responses/{id}/approvals/{approval_request_id}`."""

from typing import Annotated

from pydantic import Field

from core.http.wire import Wire


class DecideApproval(Wire):
    """The decision about a call for whose approval a response waits."""

    approve: bool
    reason: Annotated[str, Field(max_length=10_000)] | None = None
