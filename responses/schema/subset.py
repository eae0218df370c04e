"""Bodies that have some of the parameters of `POST /v1/responses`, and no other."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from kernel.errors import UnknownParameter, UnsupportedParameter


def refuse_others(values: dict[str, Any], *, known: Iterable[str], unsupported: Iterable[str] = ()) -> None:
    """Refuse every name but the known ones. What is `unsupported` is known to the wire, and may be null."""
    names = list(known)
    for name, value in values.items():
        if name in unsupported:
            if value is not None:
                raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)
        elif name not in names:
            near = get_close_matches(name, names, n=1)
            raise UnknownParameter(name, suggestion=near[0] if near else None)
