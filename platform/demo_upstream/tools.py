"""Tool calls that a text asks for.

A tool is requested by its name: "call get_weather in Paris and get_time in Rome" makes two calls. The words up to the
next name supply the arguments; a JSON object among them is used unchanged. The last part
suffices for a name such as `maps__get_route`, which the platform gives to `get_route` of the MCP server `maps`.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from demo_upstream import schema
from demo_upstream.errors import Code, DemoApiError
from demo_upstream.request import Function
from demo_upstream.schema import Fill, UnfillableError
from demo_upstream.text_values import TextValues

DEFAULT_TEXT = "demo"


@dataclass(frozen=True)
class DemoCall:
    """A tool call. `arguments` is a JSON text."""

    name: str
    arguments: str


def named(text: str, functions: Sequence[Function]) -> tuple[DemoCall, ...]:
    """Return a call of each offered function that the text names, in the order of the text, without duplicates."""
    by_name = {function.name: function for function in functions}
    last_parts = Counter(name.rpartition("__")[2] for name in by_name)
    for name, function in tuple(by_name.items()):
        last_part = name.rpartition("__")[2]
        if last_part and last_parts[last_part] == 1:
            by_name.setdefault(last_part, function)
    mentions = sorted(
        (*match.span(), name)
        for name in by_name
        for match in re.finditer(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE)
    )
    ends = [start for start, _, _ in mentions[1:]] + [len(text)]
    calls = [
        call(by_name[name], words=text[named:end], around=f"{text[:start]}\n{text[end:]}")
        for (start, named, name), end in zip(mentions, ends, strict=False)
    ]
    return tuple(dict.fromkeys(calls))


def call(function: Function, *, words: str, around: str = "") -> DemoCall:
    """Return a call. Its arguments come from its own `words`, else from the text `around` it, or are invented."""
    given = _spelled_out(words)
    if given is not None:
        return DemoCall(name=function.name, arguments=given)
    parameters = {"type": "object", **(function.parameters or {})}
    try:
        values = TextValues(words, around)
        filled = schema.fill(parameters, values=values, otherwise=DEFAULT_TEXT, extent=Fill.NEEDED)
    except UnfillableError as reason:
        raise DemoApiError(
            f"The demo model cannot call '{function.name}': {reason}.",
            param="tools",
            code=Code.INVALID_FUNCTION_PARAMETERS,
        ) from reason
    # Not orjson: its compact output would be one word and therefore a single delta.
    return DemoCall(name=function.name, arguments=json.dumps(filled, ensure_ascii=False))


def _spelled_out(words: str) -> str | None:
    """Return the JSON object in a text unchanged, or None."""
    start = words.find("{")
    if start < 0:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(words, start)
    except (json.JSONDecodeError, RecursionError):
        return None
    return words[start:end]
