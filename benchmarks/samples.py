"""Contents of requests: a picture, audio, a tool with a grammar."""

import base64

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = f"data:image/png;base64,{_PIXEL}"
WAV = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA==")
GRAMMAR_TOOL = {
    "type": "custom",
    "name": "command",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: ("go" | "stop") " " /[a-z]+/'},
}
