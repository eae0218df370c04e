"""Validation of bodies that accept only some parameters of `POST /v1/responses`."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from core.errors import UnknownParameter, UnsupportedParameter


def refuse_others(values: dict[str, Any], *, known: Iterable[str], unsupported: Iterable[str] = ()) -> None:
    """Raise an API error for every parameter that is not in `known`.

    Parameters in `unsupported` are part of the API, and may be null.
    """
    names = list(known)
    for name, value in values.items():
        if name in unsupported:
            # SDK clients send null for unset parameters.
            if value is not None:
                raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)
        elif name not in names:
            near = get_close_matches(name, names, n=1)
            raise UnknownParameter(name, suggestion=near[0] if near else None)
