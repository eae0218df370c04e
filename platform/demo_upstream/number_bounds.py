"""Numbers within the bounds of a JSON schema: minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf."""

import math
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LARGEST = 10**15
KEYWORDS = frozenset({*LIMITS, "multipleOf"})


def nearest(node: Mapping[str, JsonValue], *, wished: float, whole: bool) -> float | None:
    """Return the number nearest to `wished` that the schema allows, or None if none was found."""
    limits = {keyword: limit for keyword in LIMITS if (limit := _number(node, keyword)) is not None}
    step = _number(node, "multipleOf") or None
    wished = wished if abs(wished) <= LARGEST else 0
    candidates = _candidates(list(limits.values()), step or 1, wished)
    allowed = [
        number for number in candidates if _is_allowed(number, limits, step) and (not whole or number == int(number))
    ]
    return min(allowed, key=lambda number: abs(number - wished), default=None)


def _candidates(limits: list[float], step: float, wished: float) -> Iterator[float]:
    """Yield the wished number, the limits, the multiples around them, and the mean of the limits."""
    for anchor in (wished, *limits):
        yield anchor
        below = math.floor(anchor / step) * step
        yield from (below - step, below, below + step)
    yield sum(limits) / max(len(limits), 1)


def _is_allowed(number: float, limits: Mapping[str, float], step: float | None) -> bool:
    return (
        limits.get("minimum", -math.inf) <= number <= limits.get("maximum", math.inf)
        and limits.get("exclusiveMinimum", -math.inf) < number < limits.get("exclusiveMaximum", math.inf)
        and (step is None or math.isclose(number / step, round(number / step), abs_tol=1e-9))
    )


def _number(node: Mapping[str, JsonValue], keyword: str) -> float | None:
    value = node.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= LARGEST else None
