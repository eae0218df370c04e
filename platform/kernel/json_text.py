"""Decoder for JSON columns that keeps numbers as they were received."""

import json
from typing import Any

import orjson
from typing_extensions import override


class WireDecoder(json.JSONDecoder):
    """Decoder for `JSONField(decoder=…)` of values that are sent to clients again.

    PostgreSQL stores 1e30 as an integer of 31 digits. Python's decoder would read an integer, which differs from what
    was streamed and which the renderer cannot serialise. orjson reads every number beyond 64 bits as a float.
    """

    @override
    def decode(self, s: str, *_: Any) -> Any:
        return orjson.loads(s)
