"""Random valid values of the SDK's request types (`TypedDict`s), with plausible values for the names of their keys."""

import random
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from openai._types import SequenceNotStr
from typing_extensions import is_typeddict

MAX_DEPTH = 7
Value = Callable[[random.Random], Any]


def _hints(kind: Any) -> Mapping[str, Any]:
    hints: Mapping[str, Any] = get_type_hints(kind, include_extras=True)
    return hints


@dataclass(frozen=True, kw_only=True)
class RequestGenerator:
    """Generates values of types. `values` has values by key name, used where the type allows any value.

    `numbers` has limits of numbers by key name. `few` is the expected number of optional keys of an object.
    """

    rng: random.Random
    values: Mapping[str, Value]
    numbers: Mapping[str, tuple[float, float]]
    few: float = 2.5

    def object(
        self, kind: Any, *, depth: int = 0, but: Iterable[str] = (), needs: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return a value of a `TypedDict`: all required keys and those of `needs`, and some others except for `but`."""
        hints = {name: hint for name, hint in _hints(kind).items() if name not in set(but)}
        optional = sum(get_origin(hint) is not Required for hint in hints.values())
        chance = min(0.5, self.few / max(1, optional)) if depth < MAX_DEPTH else 0.0
        return {
            # In a `TypedDict`, a keyword of Python has an underscore.
            name.rstrip("_"): self.value(hint, name=name, depth=depth + 1)
            for name, hint in hints.items()
            if get_origin(hint) is Required or name in set(needs) or self.rng.random() < chance
        }

    def value(self, hint: Any, *, name: str, depth: int) -> Any:
        """Return a value of a type that belongs to a key."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Required, NotRequired, Annotated):
            return self.value(arguments[0], name=name, depth=depth)
        if is_typeddict(hint):
            return self.object(hint, depth=depth)
        if origin in (Union, types.UnionType):
            return self._branch(arguments, name=name, depth=depth)
        if origin is Literal:
            return self.rng.choice(arguments)
        if origin in (list, Iterable, Sequence, SequenceNotStr) or getattr(origin, "__name__", "") == "Iterable":
            size = self.rng.choice((1, 1, 2)) if depth < MAX_DEPTH else 0
            return [self.value(arguments[0], name=name, depth=depth + 1) for _ in range(size)]
        if origin is dict:
            return self.values[name](self.rng) if name in self.values else {"key": self._leaf(arguments[1], name)}
        return self._leaf(hint, name)

    def _branch(self, branches: Sequence[Any], *, name: str, depth: int) -> Any:
        plain = [one for one in branches if one is not type(None)]
        if name in self.values:
            # The values are better than what the type suggests, such as names of models that do not exist here.
            plain = [one for one in plain if get_origin(one) is not Literal] or plain
        simple = [one for one in plain if not is_typeddict(one) and get_origin(one) is None]
        if depth >= MAX_DEPTH and simple:
            plain = simple
        # Null where the type allows it, but rarely: it means the default.
        if len(plain) < len(branches) and name != "model" and self.rng.random() < 0.1:
            return None
        return self.value(self.rng.choice(plain), name=name, depth=depth)

    def _leaf(self, kind: Any, name: str) -> Any:
        if name in self.values and kind not in (int, float, bool):
            return self.values[name](self.rng)
        low, high = self.numbers.get(name, (1, 10))
        if kind is bool:
            return self.rng.random() < 0.5
        if kind is int:
            return self.rng.randint(int(low), int(high))
        if kind is float:
            return round(self.rng.uniform(low, high), 2)
        return self.rng.choice(("Hello", "a", "Über 1 %"))
