"""Ids in the paths of endpoints."""

import re

from core.http.endpoints import Endpoint
from core.ids import Prefix


def prefixes_of(endpoint: Endpoint) -> dict[str, str]:
    """Return the prefix of each id in the path by its name, without values that have no prefix."""
    converters = re.findall(r"<(\w+):(\w+)>", endpoint.path)
    return {name: prefix for prefix, name in converters if prefix in set(Prefix)}


def sample_ids(endpoint: Endpoint) -> dict[str, str]:
    """Return a well-formed value for each parameter of the path."""
    prefixed = {name: f"{prefix}_1" for name, prefix in prefixes_of(endpoint).items()}
    return {**dict.fromkeys(endpoint.ids, "x"), **prefixed}
