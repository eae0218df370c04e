"""The objects that the endpoints of `/v1/batches` return."""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from core.http.objects import UnixTime, one_of
from gateway.batches.requests import SCOPES
from responses.models.batches import BatchStatus


class BatchRequestCounts(TypedDict):
    """Numbers of requests in a batch."""

    total: int
    completed: int
    failed: int


class Batch(TypedDict):
    """A batch. Model and usage are left out until they are known."""

    id: str
    object: Literal["batch"]
    endpoint: Annotated[str, one_of(*SCOPES)]
    model: NotRequired[str]
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: Annotated[str, one_of("24h")]
    status: Annotated[str, one_of(*BatchStatus.values)]
    output_file_id: str | None
    error_file_id: str | None
    created_at: UnixTime
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    cancelling_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    usage: NotRequired[dict[str, Any]]
    metadata: dict[str, str] | None
