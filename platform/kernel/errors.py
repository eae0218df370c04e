"""The one table of API errors. Statuses and codes appear here and nowhere else; `kernel.http` renders them.

    ApiError
    ├── BadRequest 400                    invalid_request_error
    │   ├── MissingParameter              missing_required_parameter
    │   ├── UnknownParameter              unknown_parameter
    │   ├── UnsupportedParameter          unsupported_parameter
    │   ├── UnsupportedValue              unsupported_value
    │   ├── InvalidType                   invalid_type
    │   ├── InvalidValue                  invalid_value
    │   ├── LimitExceeded                 integer_below_min_value, string_above_max_length, …
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
    │   ├── EgressRefused                 url_not_allowed
    │   └── EgressFailed                  url_not_fetched
    ├── ServerRefused 401                 http_error: an MCP server that the request names wants other credentials
    ├── Unauthorized 401                  missing key, invalid_api_key, api_key_revoked, api_key_expired
    ├── Forbidden 403                     insufficient_scope
    ├── NotFound 404                      unknown ids, those of other teams, unknown URLs
    ├── MethodNotAllowed 405
    ├── Conflict 409                      what is asked for is too late
    ├── RequestTooLarge 413               request_too_large
    ├── RateLimited 429                   rate_limit_exceeded
    ├── ServerError 500                   server_error
    │   └── UpstreamError                 the model's server failed us
    └── Overloaded 503                    server_is_overloaded

Source of statuses, codes and wording: section 6 of the API surface specification.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict


class ErrorDetail(TypedDict):
    """The inner object of OpenAI's error envelope; all four keys are always present."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(TypedDict):
    """The JSON body of every error answer."""

    error: ErrorDetail


class ApiError(Exception):
    """The request could not be served."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip().split("\n")[0]
        self.param = param
        self.code = code if code is not None else self.default_code
        self.headers = dict(headers or {})
        super().__init__(self.message)

    def detail(self) -> ErrorDetail:
        """The error as the wire knows it."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def envelope(self) -> ErrorEnvelope:
        """The body of an error answer."""
        return {"error": self.detail()}


class BadRequest(ApiError):
    """The request is not valid."""

    status = 400
    type = "invalid_request_error"


class MissingParameter(BadRequest):
    """A required parameter is missing."""

    default_code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class UnknownParameter(BadRequest):
    """A parameter that the API does not know."""

    default_code = "unknown_parameter"

    def __init__(self, param: str, *, suggestion: str | None = None) -> None:
        hint = f" Did you mean '{suggestion}'?" if suggestion else ""
        super().__init__(f"Unknown parameter: '{param}'.{hint}", param=param)


class UnsupportedParameter(BadRequest):
    """A parameter that this server or this model does not support."""

    default_code = "unsupported_parameter"


class UnsupportedValue(BadRequest):
    """A value that this server or this model does not support."""

    default_code = "unsupported_value"


class InvalidType(BadRequest):
    """A value of the wrong JSON type."""

    default_code = "invalid_type"

    def __init__(self, param: str, *, expected: str, got: str) -> None:
        super().__init__(f"Invalid type for '{param}': expected {expected}, but got {got} instead.", param=param)


class InvalidValue(BadRequest):
    """A value outside the allowed set."""

    default_code = "invalid_value"

    @classmethod
    def outside(cls, value: object, supported: Sequence[str], *, param: str) -> "InvalidValue":
        """The error for a value that is not one of `supported`."""
        quoted = [f"'{name}'" for name in supported]
        listed = " and ".join(quoted) if len(quoted) < 3 else ", ".join(quoted[:-1]) + f", and {quoted[-1]}"
        return cls(f"Invalid value: '{value}'. Supported values are: {listed}.", param=param)


class LimitExceeded(BadRequest):
    """A number, string, list or object outside its limits; the code says which limit."""


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
        super().__init__(f"The requested model '{model}' does not exist.", param="model")


class MutuallyExclusive(BadRequest):
    """Parameters that say two things about the same."""

    def __init__(self, *names: str) -> None:
        named = " or ".join(f"'{name}'" for name in names)
        message = f"Mutually exclusive parameters. Ensure you are only providing one of: {named}."
        super().__init__(message, code="mutually_exclusive_parameters")


class PreviousResponseNotFound(BadRequest):
    """The previous response does not exist, was not stored, or belongs to somebody else."""

    default_code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class ConversationLocked(BadRequest):
    """Another process is currently operating on this conversation. Please retry in a few seconds."""

    default_code = "conversation_locked"

    def __init__(self) -> None:
        super().__init__(param="conversation")


class ContainerExpired(BadRequest):
    """The container has not been used for a while, and is not there any more."""

    default_code = "container_expired"

    def __init__(self, *, param: str | None = None) -> None:
        super().__init__("Container is expired.", param=param)


class ContextTooLong(BadRequest):
    """The input with everything before it is too long."""

    default_code = "context_length_exceeded"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, param="input")


class ToolCallMismatch(BadRequest):
    """A tool call without its output, or an output without its call."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="input")


class ContentFlagged(BadRequest):
    """A moderation model flagged the content, and the request's policy stops what is flagged."""

    default_code = "content_policy_violation"


class InvalidEncryptedContent(BadRequest):
    """The encrypted content could not be verified."""

    default_code = "invalid_encrypted_content"


class InvalidImageUrl(BadRequest):
    """The image's URL is neither an http(s) URL nor a data URL."""

    default_code = "invalid_image_url"


class InvalidBase64Image(BadRequest):
    """The image's data is not valid base64."""

    default_code = "invalid_base64_image"


class UnsupportedImageType(BadRequest):
    """The image is of a type that is not supported: it must be a PNG, JPEG, GIF or WebP."""

    default_code = "unsupported_image_media_type"


class EmptyImage(BadRequest):
    """The image is empty."""

    default_code = "empty_image_file"


class ImageTooLarge(BadRequest):
    """The image is too large."""

    default_code = "image_too_large"


class ImageNotDownloaded(BadRequest):
    """The image could not be downloaded."""

    default_code = "failed_to_download_image"


class ImageFileNotFound(BadRequest):
    """The image's file does not exist, or belongs to somebody else."""

    default_code = "image_file_not_found"


class UnsupportedFile(BadRequest):
    """The file is of a kind that cannot be read here."""

    default_code = "unsupported_file"


class InvalidFile(BadRequest):
    """The file could not be read."""

    default_code = "invalid_file"


class FileTooLarge(BadRequest):
    """The file is too large."""

    default_code = "file_too_large"


class TooManyWebhookEndpoints(BadRequest):
    """The team has as many webhook endpoints as a team can have."""

    default_code = "webhook_endpoint_limit_exceeded"


class EgressRefused(BadRequest):
    """The URL is not allowed: it must be an https URL that leads to a public address."""

    default_code = "url_not_allowed"


class EgressFailed(BadRequest):
    """The URL could not be fetched."""

    default_code = "url_not_fetched"


class Unauthorized(ApiError):
    """The API key is missing or not valid."""

    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"


class ServerRefused(ApiError):
    """An MCP server that the request names did not accept its credentials."""

    status = 401
    type = "external_connector_error"
    default_code = "http_error"


class Forbidden(ApiError):
    """The API key is not allowed to do this."""

    status = 403
    type = "permission_error"
    default_code = "insufficient_scope"


class NotFound(ApiError):
    """The object does not exist, or belongs to somebody else."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(ApiError):
    """The URL does not know this method."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_supported"


class Conflict(ApiError):
    """The object is in a state that does not allow this any more."""

    status = 409
    type = "invalid_request_error"


class RequestTooLarge(ApiError):
    """The body of the request is too large."""

    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"


class RateLimited(ApiError):
    """Too many requests."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class ServerError(ApiError):
    """The server had an error while processing your request."""

    default_code = "server_error"


class UpstreamError(ServerError):
    """The model's server failed."""


class Overloaded(ApiError):
    """The server is overloaded or not ready yet."""

    status = 503
    type = "service_unavailable_error"
    default_code = "server_is_overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run failed: what `response.error` shows, and the HTTP answer that a JSON request gets instead of a body.

    `code` is one of section 6.4 of the API surface specification.
    """

    code: str
    message: str
    param: str | None = None
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_api_error(self) -> ApiError:
        """The same failure as an HTTP answer, for requests that have had no byte yet."""
        if self.status == ServerRefused.status:
            # Its code is none that `response.error` knows.
            return ServerRefused(self.message, param=self.param)
        kind = {400: BadRequest, 429: RateLimited, 503: Overloaded}.get(self.status, UpstreamError)
        return kind(self.message, param=self.param, code=self.code, headers=self.headers)
