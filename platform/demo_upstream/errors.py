"""Errors of the demo upstream in OpenAI's format: {"error": {message, type, param, code}}."""

from enum import StrEnum

import orjson
from aiohttp import web
from pydantic import ValidationError


class Code(StrEnum):
    """Codes of the error responses."""

    INVALID_FUNCTION_PARAMETERS = "invalid_function_parameters"
    INVALID_JSON = "invalid_json"
    INVALID_JSON_SCHEMA = "invalid_json_schema"
    INVALID_PARAMETER_COMBINATION = "invalid_parameter_combination"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    MODEL_NOT_FOUND = "model_not_found"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_VALUE = "unsupported_value"


CODES = {
    "missing": Code.MISSING_REQUIRED_PARAMETER,
    "extra_forbidden": Code.UNKNOWN_PARAMETER,
    "json_invalid": Code.INVALID_JSON,
}


class DemoApiError(Exception):
    """An error response: its status and the fields of OpenAI's error object."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: Code | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.error = {"message": message, "type": kind, "param": param, "code": code}

    def response(self) -> web.Response:
        """Return the HTTP response."""
        body = orjson.dumps({"error": self.error})
        return web.Response(status=self.status, body=body, content_type="application/json")


def first_defect(error: ValidationError) -> DemoApiError:
    """Return the first validation error of a body as a 400 that names the parameter, such as `messages[0].role`."""
    detail = error.errors(include_url=False)[0]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in detail["loc"])
    kind, param = detail["type"], "".join(steps).removeprefix(".")
    code = CODES.get(kind, Code.INVALID_TYPE if kind.endswith("_type") else Code.INVALID_VALUE)
    message = f"Invalid '{param or 'body'}': {detail['msg']}."
    if kind == "extra_forbidden":
        message = f"The demo model does not support the parameter '{param}'."
    return DemoApiError(message, param=param or None, code=code)
