"""All API errors with their statuses and codes. `core.http.rendering` renders them.

    ApiError
    ├── BadRequest 400                    invalid_type, invalid_value, missing_required_parameter,
    │                                     mutually_exclusive_parameters, invalid_function_parameters,
    │                                     invalid_json_schema
    │   ├── MissingParameter              missing_required_parameter
    │   ├── UnknownParameter              unknown_parameter
    │   ├── UnsupportedParameter          unsupported_parameter
    │   ├── UnsupportedValue              unsupported_value
    │   ├── InvalidType                   invalid_type
    │   ├── InvalidValue                  invalid_value
    │   ├── LimitExceeded                 integer_below_min_value, integer_above_max_value, decimal_below_min_value,
    │   │                                 decimal_above_max_value, empty_string, string_above_max_length, empty_array,
    │   │                                 array_above_max_length, object_above_max_properties
    │   ├── InvalidJson                   invalid_json
    │   ├── InvalidMultipart              invalid_multipart
    │   ├── ModelNotFound                 model_not_found
    │   ├── MutuallyExclusive             mutually_exclusive_parameters
    │   ├── PreviousResponseNotFound      previous_response_not_found
    │   ├── ConversationLocked            conversation_locked
    │   ├── ContainerExpired              container_expired
    │   ├── ContextTooLong                context_length_exceeded
    │   ├── ToolCallMismatch              (code null)
    │   ├── ContentFlagged                content_policy_violation
    │   ├── InvalidEncryptedContent       invalid_encrypted_content
    │   ├── InvalidImageUrl               invalid_image_url
    │   ├── InvalidBase64Image            invalid_base64_image
    │   ├── UnsupportedImageType          unsupported_image_media_type
    │   ├── EmptyImage                    empty_image_file
    │   ├── ImageTooLarge                 image_too_large
    │   ├── ImageNotDownloaded            failed_to_download_image
    │   ├── ImageFileNotFound             image_file_not_found
    │   ├── UnsupportedFile               unsupported_file
    │   ├── InvalidFile                   invalid_file
    │   ├── FileTooLarge                  file_too_large
    │   ├── TooManyWebhookEndpoints       webhook_endpoint_limit_exceeded
    │   ├── TooManySkills                 skill_limit_exceeded
    │   ├── QuotaReached                  files_limit_reached, stored_bytes_limit_reached, open_batches_limit_reached
    │   ├── WebhookTestFailed             webhook_endpoint_test_failed
    │   ├── EgressRefused                 url_not_allowed
    │   ├── EgressFailed                  url_not_fetched
    │   ├── InvalidStreamId               invalid_stream_id
    │   ├── TooManyStreams                websocket_stream_limit_reached
    │   ├── ConnectionExpired             websocket_connection_limit_reached
    │   ├── SteeringNotSupported          steering_not_supported
    │   ├── PriceUnknown                  price_unknown
    │   │   └── CostUnbounded             cost_unbounded
    │   └── RequestRejected               invalid_prompt, context_length_exceeded, data_residency_mismatch,
    │                                     bio_policy, misalignment_policy_violation, invalid_image,
    │                                     invalid_image_format, invalid_base64_image, invalid_image_url,
    │                                     image_too_large, image_too_small, image_parse_error,
    │                                     image_content_policy_violation, invalid_image_mode, image_file_too_large,
    │                                     unsupported_image_media_type, empty_image_file, failed_to_download_image,
    │                                     image_file_not_found, model_not_found, content_policy_violation
    ├── Unauthorized 401                  invalid_api_key, api_key_revoked, api_key_expired, api_key_disabled
    │   └── MissingKey                    (code null)
    ├── Forbidden 403                     insufficient_scope, team_suspended, ip_not_allowed, tool_not_allowed,
    │                                     guardrail_required, access_program_not_granted
    ├── NotFound 404                      model_not_found
    ├── MethodNotAllowed 405              method_not_supported
    ├── Conflict 409                      (code null)
    ├── ExternalConnectorError 424        http_error
    │   ├── McpServerUnauthorized 401     http_error
    │   └── McpServerForbidden 403        http_error
    ├── RequestTooLarge 413               request_too_large
    ├── RequestTimeout 408                request_timeout
    ├── UrlTooLong 414                    url_too_long
    ├── HeadersTooLarge 431               headers_too_large
    ├── RateLimited 429                   rate_limit_exceeded, slow_down
    │   ├── LimitReached                  rate_limit_exceeded
    │   │   └── InsufficientQuota         insufficient_quota
    │   └── RequestTooLargeForLimit       request_too_large_for_limit
    ├── ServerError 500                   server_error
    │   ├── UpstreamError                 server_error
    │   └── StorageFull 507               storage_full
    └── Overloaded 503                    server_is_overloaded, server_error
        ├── ShuttingDown                  server_is_shutting_down
        ├── LimitsUnavailable             limits_unavailable
        └── DatabaseUnavailable           database_unavailable

The first line of a class's docstring is its default message. Statuses, codes and messages are OpenAI's where it has one
for the case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import ClassVar, TypedDict


class ErrorDetail(TypedDict):
    """Inner object of OpenAI's error envelope; all four keys are always present."""

    message: str
    type: str
    param: str | None
    code: str | None


FINAL = {"x-should-retry": "false"}
"""Headers of an error that a repeated request gets again. By themselves, SDKs repeat after 408, 409, 429 and 5xx."""


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


class BadRequest(ApiError):
    """The request is invalid."""

    status = 400
    codes = {
        "invalid_type": "A value has the wrong type.",
        "invalid_value": "A value is invalid.",
        "missing_required_parameter": "A required parameter is missing.",
        "mutually_exclusive_parameters": "Only one of several parameters may be given.",
        "invalid_function_parameters": "The parameters of a function are not a valid JSON schema.",
        "invalid_json_schema": "The schema of a text format is not a valid JSON schema.",
    }


class MissingParameter(BadRequest):
    """A required parameter is missing."""

    default_code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class UnknownParameter(BadRequest):
    """Unknown parameter."""

    default_code = "unknown_parameter"

    def __init__(self, param: str, *, suggestion: str | None = None) -> None:
        hint = f" Did you mean '{suggestion}'?" if suggestion else ""
        super().__init__(f"Unknown parameter: '{param}'.{hint}", param=param)


class UnsupportedParameter(BadRequest):
    """Unsupported parameter."""

    default_code = "unsupported_parameter"


class UnsupportedValue(BadRequest):
    """Unsupported value."""

    default_code = "unsupported_value"


class InvalidType(BadRequest):
    """Invalid type."""

    default_code = "invalid_type"

    def __init__(self, param: str, *, expected: str, got: str) -> None:
        super().__init__(f"Invalid type for '{param}': expected {expected}, but got {got} instead.", param=param)


class InvalidValue(BadRequest):
    """Invalid value."""

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

    codes = {
        "integer_below_min_value": "An integer is too small.",
        "integer_above_max_value": "An integer is too large.",
        "decimal_below_min_value": "A number is too small.",
        "decimal_above_max_value": "A number is too large.",
        "empty_string": "A string is empty.",
        "string_above_max_length": "A string is too long.",
        "empty_array": "An array is empty.",
        "array_above_max_length": "An array has too many entries.",
        "object_above_max_properties": "An object has too many properties.",
    }

    @classmethod
    def integer(cls, number: int, param: str, least: int, most: int) -> "LimitExceeded":
        """Return the error for an integer that is not between `least` and `most`."""
        is_small = number < least
        way, side, sign, bound = ("below", "minimum", ">=", least) if is_small else ("above", "maximum", "<=", most)
        expected = f"Expected a value {sign} {bound}, but got {number} instead."
        return cls(
            f"Invalid '{param}': integer {way} {side} value. {expected}",
            param=param,
            code=f"integer_{way}_{side[:3]}_value",
        )


class InvalidJson(BadRequest):
    """We could not parse the JSON body of your request."""

    default_code = "invalid_json"


class InvalidMultipart(BadRequest):
    """We could not parse the multipart form of your request."""

    default_code = "invalid_multipart"


class ModelNotFound(BadRequest):
    """The requested model does not exist."""

    default_code = "model_not_found"

    def __init__(self, model: str) -> None:
        # The first sentence is OpenAI's.
        where = "`GET /v1/models` lists the models that this API key may use."
        super().__init__(f"The requested model '{model}' does not exist. {where}", param="model")


class MutuallyExclusive(BadRequest):
    """Mutually exclusive parameters."""

    default_code = "mutually_exclusive_parameters"

    def __init__(self, *names: str) -> None:
        named = " or ".join(f"'{name}'" for name in names)
        message = f"Mutually exclusive parameters. Ensure you are only providing one of: {named}."
        super().__init__(message)


class PreviousResponseNotFound(BadRequest):
    """Previous response not found."""

    default_code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class ConversationLocked(BadRequest):
    """Another process is currently operating on this conversation. Please retry in a few seconds."""

    default_code = "conversation_locked"
    default_param = "conversation"


class ContainerExpired(BadRequest):
    """Container is expired."""

    default_code = "container_expired"


class ContextTooLong(BadRequest):
    """Your input exceeds the context window of this model. Please adjust your input and try again."""

    default_code = "context_length_exceeded"
    default_param = "input"


class ToolCallMismatch(BadRequest):
    """A tool call has no output, or an output has no tool call."""

    default_param = "input"


class ContentFlagged(BadRequest):
    """The content was flagged by the moderation model."""

    default_code = "content_policy_violation"


class InvalidEncryptedContent(BadRequest):
    """The encrypted content could not be verified."""

    default_code = "invalid_encrypted_content"


class InvalidImageUrl(BadRequest):
    """Invalid image URL. Expected an http(s) URL or a base64-encoded data URL."""

    default_code = "invalid_image_url"


class InvalidBase64Image(BadRequest):
    """The image data is not valid base64."""

    default_code = "invalid_base64_image"


class UnsupportedImageType(BadRequest):
    """Unsupported image format. Supported formats are PNG, JPEG, GIF and WebP."""

    default_code = "unsupported_image_media_type"


class EmptyImage(BadRequest):
    """The image file is empty."""

    default_code = "empty_image_file"


class ImageTooLarge(BadRequest):
    """The image is too large."""

    default_code = "image_too_large"


class ImageNotDownloaded(BadRequest):
    """The image could not be downloaded."""

    default_code = "failed_to_download_image"


class ImageFileNotFound(BadRequest):
    """The image file was not found."""

    default_code = "image_file_not_found"


class UnsupportedFile(BadRequest):
    """The file type is not supported."""

    default_code = "unsupported_file"


class InvalidFile(BadRequest):
    """The file could not be read."""

    default_code = "invalid_file"


class FileTooLarge(BadRequest):
    """The file is too large."""

    default_code = "file_too_large"


class TooManyWebhookEndpoints(BadRequest):
    """The maximum number of webhook endpoints has been reached."""

    default_code = "webhook_endpoint_limit_exceeded"


class TooManySkills(BadRequest):
    """The maximum number or size of skills has been reached."""

    default_code = "skill_limit_exceeded"


class QuotaReached(BadRequest):
    """The limit of files is reached."""

    default_code = "files_limit_reached"
    codes = {
        "stored_bytes_limit_reached": "The limit of stored bytes is reached.",
        "open_batches_limit_reached": "The limit of open batches is reached.",
    }

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message, code=f"{limit}_limit_reached")


class WebhookTestFailed(BadRequest):
    """The webhook endpoint did not accept the test event."""

    default_code = "webhook_endpoint_test_failed"


class EgressRefused(BadRequest):
    """The URL is not allowed. It must be an https URL that resolves to a public address."""

    default_code = "url_not_allowed"


class EgressFailed(BadRequest):
    """The URL could not be fetched."""

    default_code = "url_not_fetched"


class InvalidStreamId(BadRequest):
    """Invalid 'stream_id': expected 1 to 256 ASCII letters, digits, underscores, periods or hyphens."""

    default_code = "invalid_stream_id"
    default_param = "stream_id"


class TooManyStreams(BadRequest):
    """Too many different values of 'stream_id' on this connection. Reuse one of them or open another connection."""

    default_code = "websocket_stream_limit_reached"
    default_param = "stream_id"


class ConnectionExpired(BadRequest):
    """Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue."""

    default_code = "websocket_connection_limit_reached"


class SteeringNotSupported(BadRequest):
    """This server does not support steering. Send the input with a new 'response.create'."""

    default_code = "steering_not_supported"


class PriceUnknown(BadRequest):
    """The model has no price, so its calls cannot be kept within a hard budget."""

    default_code = "price_unknown"
    default_param = "model"


class CostUnbounded(PriceUnknown):
    """The most that the call can cost is not known, so it cannot be kept within a hard budget."""

    default_code = "cost_unbounded"


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
        "model_not_found": "The model's server does not know the model.",
        "content_policy_violation": "A guardrail flagged the content.",
    }


class Unauthorized(ApiError):
    """Missing or invalid API key."""

    status = 401
    # Anthropic's clients repeat any error otherwise, for minutes and without a word.
    is_final = True
    default_code: ClassVar[str | None] = "invalid_api_key"
    codes = {
        "api_key_revoked": "The API key was revoked.",
        "api_key_expired": "The API key has expired.",
        "api_key_disabled": "The API key is disabled.",
    }


class MissingKey(Unauthorized):
    """The request has no API key."""

    # As OpenAI answers: only wrong keys have a code.
    default_code = None


class Forbidden(ApiError):
    """The API key does not have permission to perform this operation."""

    status = 403
    is_final = True
    type = "permission_error"
    default_code = "insufficient_scope"
    codes = {
        "team_suspended": "The team of the API key is suspended.",
        "ip_not_allowed": "The API key may not be used from this IP address.",
        "tool_not_allowed": "The team or the API key may not use this tool.",
        "guardrail_required": "The endpoint does not support the team's blocking guardrail.",
        "access_program_not_granted": "The team is not part of the access program.",
    }


class NotFound(ApiError):
    """Not found."""

    status = 404
    codes = {"model_not_found": "The model does not exist."}


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


class RequestTooLarge(ApiError):
    """The request body is too large."""

    status = 413
    default_code = "request_too_large"


class RequestTimeout(ApiError):
    """The request body arrived too slowly."""

    status = 408
    default_code = "request_timeout"


class UrlTooLong(ApiError):
    """The URL is too long."""

    status = 414
    default_code = "url_too_long"


class HeadersTooLarge(ApiError):
    """The request headers are too large."""

    status = 431
    default_code = "headers_too_large"


class RateLimited(ApiError):
    """Rate limit reached. Please try again later."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    codes = {"slow_down": "The key has too many requests open, or too many are waiting on a WebSocket connection."}


class LimitReached(RateLimited):
    """A limit of the team, the API key or the end user leaves no room at the moment.

    `wait_seconds` is the time after which it does if nothing changes, `needed` the amount that a budget lacks.
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

    type = "server_error"
    default_code = "server_error"


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
    codes = {"server_error": "The model's server cannot be reached or does not answer in time."}


class ShuttingDown(Overloaded):
    """The server is shutting down. Please try again: another one will answer."""

    default_code = "server_is_shutting_down"


class LimitsUnavailable(Overloaded):
    """Limits cannot be checked at the moment. Please try again in a few seconds."""

    default_code = "limits_unavailable"


class DatabaseUnavailable(Overloaded):
    """The database is not available at the moment. Please try again in a few seconds."""

    default_code = "database_unavailable"


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
        return kind(self.message, param=self.param, code=self.code, headers=self.headers)


SHUTTING_DOWN = Failure(
    code="server_error",
    message="The server is shutting down. Please try again: another one will answer.",
    status=503,
    headers=retry_headers(1),
)
"""Reason why a run failed that its process could neither finish in time nor hand over."""


DATABASE_LOST = Failure(
    code="server_error",
    message="The database is not available at the moment. Please try again in a few seconds.",
    status=503,
    headers=retry_headers(2),
)
"""Reason why a run failed whose process has lost the database."""


def shutting_down() -> ShuttingDown:
    """Return the error of a request that this process does not serve any more."""
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


def all_codes() -> set[str]:
    """Return the codes of all errors."""
    return {code for _, _, code, _ in error_table() if code is not None}
