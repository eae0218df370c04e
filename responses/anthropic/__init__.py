"""Anthropic's Messages API, served by the same runs as responses.

`schema` validates a request, `blocks` and `tools` convert it into the input and the tools of a response, `request`
puts both together. `message` converts the output of the run back, whole or as a stream. `errors` has Anthropic's error
envelope.
"""

from responses.anthropic.request import count_tokens, create_message, stream_message
from responses.anthropic.schema import parse_count, parse_message

__all__ = ["count_tokens", "create_message", "parse_count", "parse_message", "stream_message"]
