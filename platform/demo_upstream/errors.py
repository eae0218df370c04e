"""Errors of the demo upstream in OpenAI's format: {"error": {message, type, param, code}}."""

from collections.abc import Mapping

import orjson
from aiohttp import web
from pydantic import ValidationError

CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "json_invalid": "invalid_json",
}


class DemoApiError(Exception):
    """An error response. The attributes are the fields of OpenAI's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def type(self) -> str:
        """OpenAI's error type, derived from the status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def envelope(self) -> bytes:
        """Return the JSON body."""
        detail = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": detail})

    def response(self) -> web.Response:
        """Return the HTTP response."""
        return web.Response(
            status=self.status, body=self.envelope(), content_type="application/json", headers=self.headers
        )


def unknown_model(name: str) -> DemoApiError:
    """Return OpenAI's error for an unknown model."""
    return DemoApiError(f"The model '{name}' does not exist.", status=404, param="model", code="model_not_found")


def first_defect(error: ValidationError) -> DemoApiError:
    """Return the first validation error of a body as a 400 that names the parameter."""
    detail = error.errors(include_url=False)[0]
    kind, param = detail["type"], path(detail["loc"])
    code = CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    if kind == "extra_forbidden":
        message = f"The demo model does not support the parameter '{param}'."
    else:
        message = f"Invalid '{param or 'body'}': {detail['msg']}."
    return DemoApiError(message, param=param or None, code=code)


def path(loc: tuple[str | int, ...]) -> str:
    """Return a location as OpenAI writes it, such as `messages[0].role`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).removeprefix(".")
