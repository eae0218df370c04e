"""Chat completions.

Validation is in `requests` and `messages`, checks against the model's settings in `capabilities`, the call of
the upstream in `completion`, chunks in `chunks`, and storage in `stored`. `legacy` is `/v1/completions`.
"""

from gateway.chat.completion import complete, stream
from gateway.chat.requests import parse_chat

__all__ = ["complete", "parse_chat", "stream"]
