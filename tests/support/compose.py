"""compose.yaml, read as Docker Compose does."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "compose.yaml"
_REFERENCE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<operator>:[-?])(?P<rest>[^{}]*))?\})")
Service = dict[str, Any]


def read_compose(variables: Mapping[str, str]) -> dict[str, Service]:
    """Return the services with all references replaced. Raises KeyError if a required variable is missing."""

    def replace(match: re.Match[str]) -> str:
        name, operator, rest = match["name"], match["operator"], match["rest"]
        if name is None:
            return "$"
        if value := variables.get(name):
            return value
        if operator == ":-":
            return str(rest)
        raise KeyError(name)

    def resolve(value: Any) -> Any:
        if isinstance(value, str):
            return _REFERENCE.sub(replace, value)
        if isinstance(value, dict):
            return {key: resolve(one) for key, one in value.items()}
        return [resolve(one) for one in value] if isinstance(value, list) else value

    services: dict[str, Service] = resolve(yaml.safe_load(FILE.read_text())["services"])
    return services
