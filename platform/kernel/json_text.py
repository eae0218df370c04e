"""How JSON columns are read: numbers as the wire has them."""

import json
from typing import Any

import orjson
from typing_extensions import override


class WireDecoder(json.JSONDecoder):
    """For `JSONField(decoder=…)` of what goes out again.

    PostgreSQL writes 1e30 as an integer of 31 digits. Python would read it as one, which no longer equals what was
    streamed, and which the renderer cannot write: everything beyond 64 bits stays a float here, as it came.
    """

    @override
    def decode(self, s: str, *_: Any) -> Any:
        return orjson.loads(s)
