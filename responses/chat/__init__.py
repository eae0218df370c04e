"""Chat completions.

Validation is in `requests`, `messages` and `tools`, checks against the model's settings in `capabilities`, the call of
the upstream in `completion`, the stream to the client in `chunks`, and storage in `accumulator` and `stored`.
"""

from responses.chat.completion import complete, stream
from responses.chat.requests import parse_chat

__all__ = ["complete", "parse_chat", "stream"]
