"""Anthropic's Messages API, served by the same runs as responses.

`schema` validates a request, `blocks` and `tools` convert it into the input and the tools of a response, and `request`
runs this response. `message` converts the output of the run back, whole or as a stream. `errors` has Anthropic's error
envelope, `models` has Anthropic's list of models.
"""

from gateway.anthropic.models import model_page, public_model
from gateway.anthropic.request import count_tokens, create_message, stream_message
from gateway.anthropic.schema import parse_count, parse_message

__all__ = [
    "count_tokens",
    "create_message",
    "model_page",
    "parse_count",
    "parse_message",
    "public_model",
    "stream_message",
]
