"""Chat completions: what is valid (`requests`, `messages`, `tools`), what a model can do of it (`demands`), asking the
upstream (`sending`), what the client sees of its chunks (`chunks`), and what is stored (`folding`, `stored`)."""

from responses.chat.completion import complete, stream
from responses.chat.requests import parse_chat

__all__ = ["complete", "parse_chat", "stream"]
