"""Validation of `POST /v1/batches` and of the lines of input files. The error codes of lines are OpenAI's."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import orjson
from pydantic import Field

from core.http.validation import FileId, Metadata
from core.http.wire import Wire
from core.json.storable_json import is_too_deep
from tenants.models import Scope

MAX_LINES = 50_000
MAX_BYTES = 200 * 1024 * 1024
MAX_EMBEDDING_INPUTS = 50_000
MAX_CUSTOM_ID = 512
EMBEDDINGS = "/v1/embeddings"
SCOPES = {
    "/v1/responses": Scope.RESPONSES_WRITE,
    "/v1/chat/completions": Scope.CHAT_WRITE,
    EMBEDDINGS: Scope.EMBEDDINGS_WRITE,
}
"""The endpoints that lines may call, with the scope that the API key needs."""
_KEYS = ("custom_id", "method", "url", "body")


class OutputExpiresAfter(Wire):
    """Expiration of the output files, in seconds after they were written."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class CreateBatch(Wire):
    """Body of `POST /v1/batches`."""

    input_file_id: FileId
    endpoint: Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiresAfter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInputLine:
    """A valid line of an input file. `inputs` is the number of embedding inputs, 0 for other endpoints."""

    custom_id: str
    body: str
    model: str | None
    inputs: int


class BatchErrorCode(StrEnum):
    """Codes in the `errors` of a batch."""

    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    EMPTY_BATCH = "empty_batch"
    FILE_TOO_LARGE = "file_too_large"
    INVALID_JSON_LINE = "invalid_json_line"
    INVALID_REQUEST = "invalid_request"
    INVALID_URL = "invalid_url"
    MISSING_PARAMETER = "missing_required_parameter"
    RESULTS_NOT_STORED = "results_not_stored"
    STREAMING_UNSUPPORTED = "streaming_unsupported"
    TOO_MANY_TASKS = "too_many_tasks"


class InvalidLine(Exception):
    """A line of an input file is invalid."""

    def __init__(self, code: BatchErrorCode, message: str, *, param: str | None = None) -> None:
        self.code = code
        self.message = message
        self.param = param
        super().__init__(message)


def too_many_inputs() -> InvalidLine:
    """Return the error of a batch with more embedding inputs than allowed."""
    message = f"The batch has more than {MAX_EMBEDDING_INPUTS} embedding inputs."
    return InvalidLine(BatchErrorCode.TOO_MANY_TASKS, message, param="body.input")


def parse_line(raw: bytes, *, endpoint: str) -> BatchInputLine:
    """Parse one line. Raises InvalidLine."""
    # The rest of the body is validated when the line is executed: it fails only its line, not the whole batch.
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as broken:
        raise InvalidLine(BatchErrorCode.INVALID_JSON_LINE, "This line is not parseable as valid JSON.") from broken
    if not isinstance(values, dict) or is_too_deep(values, raw):
        raise InvalidLine(BatchErrorCode.INVALID_JSON_LINE, "This line is not a JSON object, or is nested too deeply.")
    for name in _KEYS:
        if values.get(name) is None:
            raise _missing(name)
    for name in values:
        if name not in _KEYS:
            raise InvalidLine(BatchErrorCode.INVALID_REQUEST, f"Unknown parameter: '{name[:64]}'.", param=name[:64])
    custom_id, body = values["custom_id"], values["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\x00" in custom_id:
        raise InvalidLine(
            BatchErrorCode.INVALID_REQUEST,
            f"Invalid 'custom_id': expected a string of 1 to {MAX_CUSTOM_ID} characters.",
            param="custom_id",
        )
    if values["method"] != "POST":
        raise InvalidLine(BatchErrorCode.INVALID_REQUEST, "Invalid 'method': only 'POST' is supported.", param="method")
    if values["url"] != endpoint:
        raise InvalidLine(
            BatchErrorCode.INVALID_URL,
            f"The 'url' of this line does not match the endpoint of the batch, '{endpoint}'.",
            param="url",
        )
    if not isinstance(body, dict):
        raise InvalidLine(BatchErrorCode.INVALID_REQUEST, "Invalid 'body': expected an object.", param="body")
    model, given = body.get("model"), body.get("input")
    # An embedding input is a text or a list of token numbers, or a list of either.
    several = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
    inputs = len(several) if endpoint == EMBEDDINGS else 0
    if inputs > MAX_EMBEDDING_INPUTS:
        raise too_many_inputs()
    # The prompt of a response may name the model.
    if model is None and body.get("prompt") is None:
        raise _missing("body.model")
    # No client is connected that could read a stream.
    if body.get("stream") is True:
        raise InvalidLine(
            BatchErrorCode.STREAMING_UNSUPPORTED, "Streaming is not supported in batches.", param="body.stream"
        )
    return BatchInputLine(
        custom_id=custom_id,
        body=orjson.dumps(body).decode(),
        model=model if isinstance(model, str) and len(model) <= 200 else None,
        inputs=inputs,
    )


def _missing(param: str) -> InvalidLine:
    return InvalidLine(BatchErrorCode.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
