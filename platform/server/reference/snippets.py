"""Renders the example requests of the API reference as programs in Python and as curl commands."""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from openai import OpenAI

from core.http.endpoints import Endpoint
from server.reference.samples import EXAMPLE_IDS, RENAMED, Sample, filled

_PATH = re.compile(r"self\._(?:get|post|delete|get_api_list)\(\s*(?:path_template\(\s*)?f?\"([^\"]+)\"")
_WIDTH = 88


class Snippets:
    """The programs of one sample. `ids` replaces the names in braces, by default with the ids of the documentation."""

    def __init__(self, name: str, endpoint: Endpoint, sample: Sample, ids: Mapping[str, str] = EXAMPLE_IDS) -> None:
        self._name, self._endpoint, self._sample = name, endpoint, sample
        self._ids = ids

    def curl(self, *, stream: bool = False) -> str:
        """Return the curl command."""
        sample, endpoint = self._sample, self._endpoint
        query = f"?{urlencode(sample.query)}" if sample.query else ""
        shown = " --no-buffer" if stream else ""
        lines = [f'curl --fail-with-body{shown} "$OPENAI_BASE_URL{self._path()}{query}"']
        key = "OPENAI_ADMIN_KEY" if self._is_admin else "OPENAI_API_KEY"
        lines.append(f'-H "Authorization: Bearer ${key}"')
        if sample.form is not None:
            lines += [f"-F '{self._part(name, value)}'" for name, value in sample.form.items()]
        elif (body := self._body(stream=stream)) is not None:
            lines += ['-H "Content-Type: application/json"', f"-d '{_json(body)}'"]
        elif endpoint.method != "GET":
            lines[0] = lines[0].replace("curl ", f"curl -X {endpoint.method} ", 1)
        if self.is_binary:
            lines.append("--output answer")
        return " \\\n  ".join(lines)

    def python(self, *, stream: bool = False) -> str:
        """Return the program with the openai SDK."""
        called = self._call(stream=stream)
        names = "OpenAI, Stream" if "Stream[" in called else "OpenAI"
        head = f"from openai import {names}\n\nclient = OpenAI()\n"
        if stream:
            return f"{head}for event in {called}:\n    print(event)"
        if self.is_binary:
            return f"{head}answer = {called}\nprint(len(answer.read()))"
        return f"{head}answer = {called}\nprint(answer)"

    @property
    def is_binary(self) -> bool:
        """True if the answer is the content of a file."""
        return isinstance(self._endpoint.returns, str) and not self._endpoint.returns.startswith("application/jsonl")

    @property
    def _is_admin(self) -> bool:
        return self._name.startswith("admin.")

    def _body(self, *, stream: bool) -> Any:
        if self._sample.body is None:
            return None
        return filled({**self._sample.body, **({"stream": True} if stream else {})}, self._ids)

    def _path(self) -> str:
        names = RENAMED.get(self._name, {})
        return re.sub(r"{(\w+)}", lambda found: self._ids[names.get(found[1], found[1])], self._endpoint.template)

    def _call(self, *, stream: bool) -> str:
        method = sdk_method(self._name)
        body = self._body(stream=stream) or {}
        if method is None:
            # An extension of OpenAI's API.
            path = json.dumps(self._path())
            options = {"body": body} if self._sample.body is not None else {}
            if stream:
                arguments = [path, "cast_to=object", *_arguments(options), "stream=True", "stream_cls=Stream[object]"]
                return _call("client.post", arguments)
            if self._sample.query:
                options["options"] = {"params": self._sample.query}
            kind = "str" if isinstance(self._endpoint.returns, str) else "object"
            return _call(f"client.{self._endpoint.method.lower()}", [path, f"cast_to={kind}", *_arguments(options)])
        names = RENAMED.get(self._name, {})
        expected = _PATH.search(inspect.getsource(method))
        places = re.findall(r"\{(\w+)\}", expected[1]) if expected else []
        # By position: the SDK calls some of the ids differently.
        ids = {place: self._ids[names.get(name, name)] for place, name in zip(places, self._endpoint.ids, strict=True)}
        arguments = _arguments({**ids, **body, **self._sample.query})
        arguments += [self._field(name, value) for name, value in (self._sample.form or {}).items()]
        return _call(f"client.{self._name}", arguments)

    def _part(self, name: str, value: str) -> str:
        # curl sends the last part of the path only, unless it is told a name.
        named = f";filename={value[1:]}" if name.endswith("[]") else ""
        return f"{name}={filled(value, self._ids)}{named}"

    def _field(self, name: str, value: str) -> str:
        text = filled(value, self._ids)
        if not text.startswith("@"):
            return f"{name}={json.dumps(text)}"
        opened = f'open("{text[1:]}", "rb")'
        if name.endswith("[]"):
            return f'{name[:-2]}=[("{text[1:]}", {opened})]'
        return f"{name}={opened}"


def sdk_method(name: str) -> Any:
    """Return the SDK's method of an operation, or None for an extension of OpenAI's API."""
    found: Any = OpenAI(api_key="-", admin_api_key="-")
    for step in name.split("."):
        found = getattr(found, step, None)
    return found


def _arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_literal(value, 1)}" for name, value in values.items()]


def _call(function: str, arguments: list[str]) -> str:
    line = f"{function}({', '.join(arguments)})"
    if len(line) + len("answer = ") <= _WIDTH and "\n" not in line:
        return line
    return "\n".join([f"{function}(", *(f"    {argument}," for argument in arguments), ")"])


def _literal(value: Any, depth: int) -> str:
    """Return a value as Python, over several lines if it is long."""
    match value:
        case Mapping():
            inner = [f"{json.dumps(key)}: {_literal(part, depth + 1)}" for key, part in value.items()]
            opening, closing = "{", "}"
        case list():
            inner = [_literal(part, depth + 1) for part in value]
            opening, closing = "[", "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return repr(value)
    line = f"{opening}{', '.join(inner)}{closing}"
    if len(line) + 4 * depth + 16 <= _WIDTH and "\n" not in line:
        return line
    indent = "    " * (depth + 1)
    return "\n".join([opening, *(f"{indent}{part}," for part in inner), "    " * depth + closing])


def _json(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= _WIDTH - 8 else json.dumps(value, ensure_ascii=False, indent=2).replace("\n", "\n  ")
