"""All API errors with their statuses and codes. `core.http.rendering` renders them.

A class has a status, a type and a default code; errors that differ from their class only in code and message are rows
below it. The first line of a docstring is the default message. Statuses, codes and messages are OpenAI's wherever
OpenAI has one for the case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import ceil
from typing import ClassVar, TypedDict, TypeVar


class ErrorDetail(TypedDict):
    """Inner object of OpenAI's error envelope; all four keys are always present."""

    message: str
    type: str
    param: str | None
    code: str | None


SERVER_ERROR = "server_error"
"""Code of failures that a client cannot avoid, and of errors without a code where one is required."""

FINAL = {"x-should-retry": "false"}
"""Headers of an error that a retry would get again; without them, SDKs retry after 408, 409, 429 and 5xx."""


def retry_headers(seconds: float) -> dict[str, str]:
    """Return the headers that ask clients to wait for this time before they repeat the request."""
    # Rounded up, so that a client that waits exactly as long is not refused again. The SDK ignores zero.
    return {"retry-after": str(max(1, ceil(seconds))), "retry-after-ms": str(max(1, ceil(1000 * seconds)))}


class ApiError(Exception):
    """The request could not be processed."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "invalid_request_error"
    default_code: ClassVar[str | None] = None
    default_param: ClassVar[str | None] = None
    codes: ClassVar[Mapping[str, str]] = {}
    """Further codes of this class alone, with their meanings."""
    is_final: ClassVar[bool] = False
    """True if the same request would get the same answer: the header `x-should-retry` keeps SDKs from repeating it."""

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.general = ""
        """The message without the text of an upstream; empty if the message has none."""
        self.message = message or (type(self).__doc__ or "").strip().split("\n")[0]
        self.param = param if param is not None else self.default_param
        self.code = code if code is not None else self.default_code
        self.headers = {**(FINAL if self.is_final else {}), **(headers or {})}
        super().__init__(self.message)

    def detail(self) -> ErrorDetail:
        """Return the error as the API shows it."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def envelope(self) -> dict[str, ErrorDetail]:
        """Return the body of an error response."""
        return {"error": self.detail()}


_Kind = TypeVar("_Kind", bound=ApiError)


def _coded(
    parent: type[_Kind], code: str | None, message: str, *, param: str | None = None, status: int | None = None
) -> type[_Kind]:
    """Return a class of errors that differs from `parent` in its code, its default message, parameter and status."""
    name = (code or "error_without_code").title().replace("_", "")
    own: dict[str, object] = {"__doc__": message, "__module__": __name__, "codes": {}, "default_code": code}
    own |= {} if param is None else {"default_param": param}
    own |= {} if status is None else {"status": status}
    return type(name, (parent,), own)


class BadRequest(ApiError):
    """The request is invalid."""

    status = 400


class ApprovalAwaited(BadRequest):
    """A request answers an approval request for which a response waits, or continues this response."""

    default_code = "approval_awaited"

    def __init__(self, request_id: str, *, response_id: str, param: str) -> None:
        super().__init__(
            f"Response '{response_id}' is waiting for approval request '{request_id}'. Decide it with POST "
            f"/v1/responses/{response_id}/approvals/{request_id}, and the response continues.",
            param=param,
        )


class ApprovalDecided(BadRequest):
    """The approval request was decided before."""

    default_code = "approval_already_decided"


class ApprovalExpired(BadRequest):
    """The approval request has expired."""

    default_code = "approval_expired"


class ApprovalNotAwaited(BadRequest):
    """No response waits for the approval request."""

    default_code = "approval_not_awaited"


class MissingParameter(BadRequest):
    """A required parameter is missing."""

    default_code = "missing_required_parameter"

    def __init__(self, param: str, *, message: str | None = None) -> None:
        super().__init__(message or f"Missing required parameter: '{param}'.", param=param)


class UnknownParameter(BadRequest):
    """Unknown parameter."""

    default_code = "unknown_parameter"

    def __init__(self, param: str, *, suggestion: str | None = None) -> None:
        hint = f" Did you mean '{suggestion}'?" if suggestion else ""
        super().__init__(f"Unknown parameter: '{param}'.{hint}", param=param)


UnsupportedParameter = _coded(BadRequest, "unsupported_parameter", "Unsupported parameter.")
UnsupportedValue = _coded(BadRequest, "unsupported_value", "Unsupported value.")


class InvalidType(BadRequest):
    """A value has the wrong type."""

    default_code = "invalid_type"

    def __init__(self, param: str | None, *, expected: str, got: str) -> None:
        """Without a `param`, the body as a whole has the wrong type."""
        where = "body" if param is None else f"type for '{param}'"
        super().__init__(f"Invalid {where}: expected {expected}, but got {got} instead.", param=param)


class InvalidValue(BadRequest):
    """A value is invalid."""

    default_code = "invalid_value"

    @classmethod
    def unsupported(cls, value: object, supported: Sequence[str], *, param: str) -> "InvalidValue":
        """Return the error for a value that is not one of `supported`."""
        # Lists are joined as in OpenAI's messages, with a comma before the last "and".
        quoted = [f"'{name}'" for name in supported]
        listed = " and ".join(quoted) if len(quoted) < 3 else ", ".join(quoted[:-1]) + f", and {quoted[-1]}"
        return cls(f"Invalid value: '{value}'. Supported values are: {listed}.", param=param)


class LimitExceeded(BadRequest):
    """A number, string, array or object is outside its limits."""

    @classmethod
    def integer(cls, number: int, param: str, least: int, most: int) -> "LimitExceeded":
        """Return the error for an integer that is not between `least` and `most`."""
        is_small = number < least
        kind, way, side = (IntegerTooSmall, "below", "minimum") if is_small else (IntegerTooLarge, "above", "maximum")
        expected = f"{'>=' if is_small else '<='} {least if is_small else most}"
        message = (
            f"Invalid '{param}': integer {way} {side} value. Expected a value {expected}, but got {number} instead."
        )
        return kind(message, param=param)


IntegerTooSmall = _coded(LimitExceeded, "integer_below_min_value", "An integer is too small.")
IntegerTooLarge = _coded(LimitExceeded, "integer_above_max_value", "An integer is too large.")
DecimalTooSmall = _coded(LimitExceeded, "decimal_below_min_value", "A number is too small.")
DecimalTooLarge = _coded(LimitExceeded, "decimal_above_max_value", "A number is too large.")
EmptyString = _coded(LimitExceeded, "empty_string", "A string is empty.")
StringTooLong = _coded(LimitExceeded, "string_above_max_length", "A string is too long.")
EmptyArray = _coded(LimitExceeded, "empty_array", "An array is empty.")
ArrayTooLong = _coded(LimitExceeded, "array_above_max_length", "An array has too many entries.")
ObjectTooLarge = _coded(LimitExceeded, "object_above_max_properties", "An object has too many properties.")

InvalidFunctionParameters = _coded(
    BadRequest, "invalid_function_parameters", "The parameters of a function are not a valid JSON schema."
)
InvalidJsonSchema = _coded(BadRequest, "invalid_json_schema", "The schema of a text format is not a valid JSON schema.")
InvalidJson = _coded(BadRequest, "invalid_json", "We could not parse the JSON body of your request.")
InvalidMultipart = _coded(BadRequest, "invalid_multipart", "We could not parse the multipart form of your request.")


class ModelNotFound(BadRequest):
    """The requested model does not exist."""

    default_code = "model_not_found"

    def __init__(self, model: str) -> None:
        # The first sentence is OpenAI's.
        where = "`GET /v1/models` lists the models that this API key may use."
        super().__init__(f"The requested model '{model}' does not exist. {where}", param="model")


class MutuallyExclusive(BadRequest):
    """Only one of several parameters may be given."""

    default_code = "mutually_exclusive_parameters"

    def __init__(self, *names: str, param: str | None = None) -> None:
        named = " or ".join(f"'{name}'" for name in names)
        message = f"Mutually exclusive parameters. Ensure you are only providing one of: {named}."
        super().__init__(message, param=param)


class PreviousResponseNotFound(BadRequest):
    """Previous response not found."""

    default_code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


ConversationLocked = _coded(
    BadRequest,
    "conversation_locked",
    "Another process is currently operating on this conversation. Please retry in a few seconds.",
    param="conversation",
)
ContainerExpired = _coded(BadRequest, "container_expired", "Container is expired.")
ContextTooLong = _coded(
    BadRequest,
    "context_length_exceeded",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    param="input",
)


class ToolCallMismatch(BadRequest):
    """A tool call has no output, or an output has no tool call."""

    default_param = "input"


ContentFlagged = _coded(BadRequest, "content_policy_violation", "The content was flagged by the moderation model.")
InvalidEncryptedContent = _coded(
    BadRequest, "invalid_encrypted_content", "The encrypted content could not be verified."
)
InvalidImageUrl = _coded(
    BadRequest, "invalid_image_url", "Invalid image URL. Expected an http(s) URL or a base64-encoded data URL."
)
InvalidBase64Image = _coded(BadRequest, "invalid_base64_image", "The image data is not valid base64.")
UnsupportedImageType = _coded(
    BadRequest,
    "unsupported_image_media_type",
    "Unsupported image format. Supported formats are PNG, JPEG, GIF and WebP.",
)
EmptyImage = _coded(BadRequest, "empty_image_file", "The image file is empty.")
ImageTooLarge = _coded(BadRequest, "image_too_large", "The image is too large.")
ImageNotDownloaded = _coded(BadRequest, "failed_to_download_image", "The image could not be downloaded.")
ImageFileNotFound = _coded(BadRequest, "image_file_not_found", "The image file was not found.")
UnsupportedFile = _coded(BadRequest, "unsupported_file", "The file type is not supported.")
InvalidFile = _coded(BadRequest, "invalid_file", "The file could not be read.")
FileTooLarge = _coded(BadRequest, "file_too_large", "The file is too large.")
TooManyWebhookEndpoints = _coded(
    BadRequest, "webhook_endpoint_limit_exceeded", "The maximum number of webhook endpoints has been reached."
)
TooManySkills = _coded(BadRequest, "skill_limit_exceeded", "The maximum number or size of skills has been reached.")


class QuotaReached(BadRequest):
    """The limit of files is reached."""

    default_code = "files_limit_reached"
    codes = {
        "stored_bytes_limit_reached": "The limit of stored bytes is reached.",
        "open_batches_limit_reached": "The limit of open batches is reached.",
    }

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message, code=f"{limit}_limit_reached")


WebhookTestFailed = _coded(
    BadRequest, "webhook_endpoint_test_failed", "The webhook endpoint did not accept the test event."
)
EgressRefused = _coded(
    BadRequest, "url_not_allowed", "The URL is not allowed. It must be an https URL that resolves to a public address."
)
EgressFailed = _coded(BadRequest, "url_not_fetched", "The URL could not be fetched.")
InvalidStreamId = _coded(
    BadRequest,
    "invalid_stream_id",
    "Invalid 'stream_id': expected 1 to 256 ASCII letters, digits, underscores, periods or hyphens.",
    param="stream_id",
)
TooManyStreams = _coded(
    BadRequest,
    "websocket_stream_limit_reached",
    "Too many different values of 'stream_id' on this connection. Reuse one of them or open another connection.",
    param="stream_id",
)
ConnectionExpired = _coded(
    BadRequest,
    "websocket_connection_limit_reached",
    "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue.",
)
SteeringNotSupported = _coded(
    BadRequest,
    "steering_not_supported",
    "This server does not support steering. Send the input with a new 'response.create'.",
)
PriceUnknown = _coded(
    BadRequest,
    "price_unknown",
    "The model has no price, so a hard budget cannot cover its calls.",
    param="model",
)
CostUnbounded = _coded(
    PriceUnknown,
    "cost_unbounded",
    "The maximum cost of the call is unknown, so a hard budget cannot cover it.",
)

UPSTREAM_REJECTIONS = (
    "invalid_prompt",
    "context_length_exceeded",
    "data_residency_mismatch",
    "bio_policy",
    "misalignment_policy_violation",
    "invalid_image",
    "invalid_image_format",
    "invalid_base64_image",
    "invalid_image_url",
    "image_too_large",
    "image_too_small",
    "image_parse_error",
    "image_content_policy_violation",
    "invalid_image_mode",
    "image_file_too_large",
    "unsupported_image_media_type",
    "empty_image_file",
    "failed_to_download_image",
    "image_file_not_found",
)
"""Codes of upstreams for errors that the client can fix."""


class RequestRejected(BadRequest):
    """The model's server or a guardrail rejected the request."""

    codes = {
        **dict.fromkeys(UPSTREAM_REJECTIONS, "The model's server rejected the request."),
        "content_policy_violation": "A guardrail flagged the content.",
    }


InvalidPrompt = _coded(RequestRejected, "invalid_prompt", "The model's server rejected the request.")
ModelRejected = _coded(RequestRejected, "model_not_found", "The requested model does not exist.", param="model")


class Unauthorized(ApiError):
    """Missing or invalid API key."""

    status = 401
    # Anthropic's clients otherwise retry any error for minutes without reporting it.
    is_final = True
    default_code: ClassVar[str | None] = "invalid_api_key"


# As OpenAI answers: only wrong keys have a code.
MissingKey = _coded(Unauthorized, None, "The request has no API key.")
KeyRevoked = _coded(Unauthorized, "api_key_revoked", "This API key has been revoked.")
KeyExpired = _coded(Unauthorized, "api_key_expired", "This API key has expired.")
KeyDisabled = _coded(Unauthorized, "api_key_disabled", "This API key is disabled.")


class Forbidden(ApiError):
    """The API key does not have permission to perform this operation."""

    status = 403
    is_final = True
    type = "permission_error"
    default_code = "insufficient_scope"


TeamSuspended = _coded(Forbidden, "team_suspended", "The team of this API key is suspended.")
AddressNotAllowed = _coded(Forbidden, "ip_not_allowed", "This API key may not be used from your IP address.")
ToolNotAllowed = _coded(Forbidden, "tool_not_allowed", "The team or the API key may not use this tool.")
GuardrailRequired = _coded(
    Forbidden, "guardrail_required", "The endpoint does not support the team's blocking guardrail."
)
AccessProgramNotGranted = _coded(Forbidden, "access_program_not_granted", "The team is not part of the access program.")


class NotFound(ApiError):
    """Not found."""

    status = 404


UnknownModel = _coded(NotFound, "model_not_found", "The model does not exist.")


class MethodNotAllowed(ApiError):
    """Method not allowed."""

    status = 405
    default_code = "method_not_supported"

    def __init__(self, method: str, path: str, *, allowed: Sequence[str]) -> None:
        listed = ", ".join(allowed)
        super().__init__(f"Not allowed to {method} on {path}. Allowed: {listed}.", headers={"Allow": listed})


class Conflict(ApiError):
    """The operation is not possible in the object's current state."""

    status = 409
    is_final = True


class IdempotencyKeyReused(Conflict):
    """The idempotency key was used for another request. Use a new key for each request."""

    default_code = "idempotency_key_reused"


class IdempotentAnswerNotStored(Conflict):
    """The request with this idempotency key was answered, and its answer was not stored."""

    default_code = "idempotent_answer_not_stored"


class ExternalConnectorError(ApiError):
    """The tools of an MCP server could not be listed."""

    status = 424
    type = "external_connector_error"
    default_code = "http_error"


class McpServerUnauthorized(ExternalConnectorError):
    """The MCP server rejected the request's credentials."""

    status = 401


class McpServerForbidden(ExternalConnectorError):
    """The MCP server does not permit the request's credentials to use it."""

    status = 403


RequestTooLarge = _coded(ApiError, "request_too_large", "The request body is too large.", status=413)
RequestTimeout = _coded(ApiError, "request_timeout", "The request body arrived too slowly.", status=408)
UrlTooLong = _coded(ApiError, "url_too_long", "The URL is too long.", status=414)
HeadersTooLarge = _coded(ApiError, "headers_too_large", "The request headers are too large.", status=431)


class RateLimited(ApiError):
    """Rate limit reached. Please try again later."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


TooManyOpenRequests = _coded(
    RateLimited,
    "slow_down",
    "The key has too many requests open, or too many are waiting on a WebSocket connection.",
)


class LimitReached(RateLimited):
    """A limit of the team, the API key or the end user leaves no room at the moment.

    `wait_seconds` is the time until there is room if nothing else changes, `needed` the amount that a budget lacks.
    """

    default_code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        subject: str = "",
        wait_seconds: float | None = None,
        needed: Decimal = Decimal(0),
    ) -> None:
        super().__init__(message, headers=headers)
        self.subject = subject
        self.wait_seconds = wait_seconds
        self.needed = needed


class InsufficientQuota(LimitReached):
    """The budget is used up."""

    type = "insufficient_quota"
    default_code = "insufficient_quota"
    is_final = True


class RequestTooLargeForLimit(RateLimited):
    """The request needs more than its limit allows in total."""

    default_code = "request_too_large_for_limit"
    is_final = True


class ServerError(ApiError):
    """The server had an error while processing your request."""

    type = SERVER_ERROR
    default_code = SERVER_ERROR


class UpstreamError(ServerError):
    """The model's server failed."""


class StorageFull(ServerError):
    """The server has no space left for files. Please try again later."""

    status = 507
    default_code = "storage_full"


class Overloaded(ApiError):
    """The server is currently overloaded or not ready yet."""

    status = 503
    type = "service_unavailable_error"
    default_code = "server_is_overloaded"


UpstreamUnavailable = _coded(
    Overloaded, SERVER_ERROR, "The server stopped the run, or no server of the model takes requests at the moment."
)
UpstreamUnreachable = _coded(Overloaded, "upstream_unreachable", "The model's server could not be reached.")
UpstreamTimeout = _coded(Overloaded, "upstream_timeout", "The model's server did not answer in time.")

ShuttingDown = _coded(
    Overloaded, "server_is_shutting_down", "The server is shutting down. Please try again: another one will answer."
)
LimitsUnavailable = _coded(
    Overloaded, "limits_unavailable", "Limits cannot be checked at the moment. Please try again in a few seconds."
)
DatabaseUnavailable = _coded(
    Overloaded,
    "database_unavailable",
    "The database is not available at the moment. Please try again in a few seconds.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason why a run failed: the contents of `response.error`, and the status that a JSON request gets.

    `code` is one of the codes that OpenAI's schema allows in `response.error`. `general` is the message without the
    text of an upstream; empty if the message has none.
    """

    code: str
    message: str
    general: str = ""
    param: str | None = None
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: ApiError, *, general: str = "", status: int | None = None) -> "Failure":
        """Return the failure for an error; `status` replaces the error's status for JSON requests."""
        return cls(
            code=error.code or SERVER_ERROR,
            message=error.message,
            general=general,
            param=error.param,
            status=status or error.status,
            headers=error.headers,
        )

    @classmethod
    def of_refusal(cls, error: ApiError) -> "Failure":
        """Return the failure of a refused call, with a code that `response.error` may have."""
        kinds: dict[type[ApiError], type[ApiError]] = {
            Overloaded: Overloaded,
            InsufficientQuota: InsufficientQuota,
            PriceUnknown: InvalidPrompt,
        }
        kind = next((kind for refused, kind in kinds.items() if isinstance(error, refused)), RateLimited)
        return replace(cls.of(error), code=kind.default_code or SERVER_ERROR)

    def as_api_error(self) -> ApiError:
        """Return the failure as an API error, for requests whose response has not begun."""
        for connector in (ExternalConnectorError, McpServerUnauthorized, McpServerForbidden):
            # Their type and code exist for HTTP errors only; `response.error` cannot contain them.
            if self.status == connector.status:
                return connector(self.message, param=self.param)
        if self == SHUTTING_DOWN:
            return shutting_down()
        if self == DATABASE_LOST:
            return DatabaseUnavailable(headers=self.headers)
        if self.code == InsufficientQuota.default_code:
            return InsufficientQuota(self.message, headers=self.headers)
        kind = {400: RequestRejected, 429: RateLimited, 503: Overloaded}.get(self.status, UpstreamError)
        error = kind(self.message, param=self.param, code=self.code, headers=self.headers)
        error.general = self.general
        return error


SHUTTING_DOWN = Failure.of(UpstreamUnavailable(ShuttingDown.__doc__, headers=retry_headers(1)))
"""Failure of a run that its process could neither finish in time nor hand over."""


DATABASE_LOST = Failure.of(UpstreamUnavailable(DatabaseUnavailable.__doc__, headers=retry_headers(2)))
"""Failure of a run whose process has lost the database."""


def shutting_down() -> Overloaded:
    """Return the error for a request that this process no longer serves."""
    return ShuttingDown(headers=dict(SHUTTING_DOWN.headers))


def error_table() -> list[tuple[int, str, str | None, str]]:
    """Return status, type, code and meaning of all errors, by status."""
    rows: dict[tuple[int, str | None], tuple[int, str, str | None, str]] = {}
    kinds = list(ApiError.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
        own = [(kind.default_code, (kind.__doc__ or "").split("\n")[0]), *kind.codes.items()]
        for code, meaning in own:
            rows.setdefault((kind.status, code), (kind.status, kind.type, code, meaning))
    return sorted(rows.values(), key=lambda row: row[0])
