"""Filters and ranking options of searches in vector stores, by the API and by the `file_search` tool."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from conversations.items.hosted import Attribute
from core.http.wire import TAG, Wire, by_type

MAX_RESULTS = 50
_MAX_FILTERS = 100
_MAX_VALUES = 1_000
_ORDERED = frozenset({"gt", "gte", "lt", "lte"})
# The exact type is looked up, because bool is a subclass of int.
_KINDS = {bool: "bool", int: "int", float: "float", list: "list"}
Key = Annotated[str, StringConstraints(max_length=64)]


def _value_tag(value: Any) -> str:
    # Values of other types are reported as invalid strings, because strings are the most common type.
    return f"{TAG}{_KINDS.get(type(value), 'str')}"


def _entry_tag(value: Any) -> str:
    tag = _value_tag(value)
    return tag if tag in {f"{TAG}int", f"{TAG}float"} else f"{TAG}str"


_Listed = Annotated[
    Annotated[str, Tag(f"{TAG}str")] | Annotated[int, Tag(f"{TAG}int")] | Annotated[float, Tag(f"{TAG}float")],
    Discriminator(_entry_tag),
]
_Value = Annotated[
    Annotated[str, Tag(f"{TAG}str")]
    | Annotated[bool, Tag(f"{TAG}bool")]
    | Annotated[int, Tag(f"{TAG}int")]
    | Annotated[float, Tag(f"{TAG}float")]
    | Annotated[list[_Listed], Field(max_length=_MAX_VALUES), Tag(f"{TAG}list")],
    Discriminator(_value_tag),
]


class ComparisonFilter(Wire):
    """A filter used to compare a specified attribute key to a given value."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Key
    value: _Value

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        if isinstance(self.value, list) is not (self.type in {"in", "nin"}):
            needs = "an array" if self.type in {"in", "nin"} else "a string, a number or a boolean"
            raise ValueError(f"a filter of type '{self.type}' takes {needs}.")
        # Booleans cannot be compared by order.
        if self.type in _ORDERED and isinstance(self.value, bool):
            raise ValueError(f"a filter of type '{self.type}' takes a string or a number.")
        return self


class CompoundFilter(Wire):
    """Combine multiple filters using `and` or `or`."""

    type: Literal["and", "or"]
    filters: Annotated[list["Filter"], Field(min_length=1, max_length=_MAX_FILTERS)]


def _filter_tag(value: Any) -> str | None:
    tag = by_type(value)
    return tag if tag is None else f"{TAG}{'compound' if tag in {f'{TAG}and', f'{TAG}or'} else 'comparison'}"


Filter = Annotated[
    Annotated[ComparisonFilter, Tag(f"{TAG}comparison")] | Annotated[CompoundFilter, Tag(f"{TAG}compound")],
    Discriminator(_filter_tag),
]
# Filters nest: the class refers to the union that contains it.
CompoundFilter.model_rebuild()


class HybridSearch(Wire):
    """Weights that control how vector similarity and keyword matches are balanced."""

    embedding_weight: Annotated[float, Field(ge=0, le=1_000)]
    text_weight: Annotated[float, Field(ge=0, le=1_000)]

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        # Scores are divided by the sum of the weights.
        if not self.embedding_weight + self.text_weight:
            raise ValueError("at least one weight must be greater than 0.")
        return self


class RankingOptions(Wire):
    """Ranking options for search."""

    ranker: Literal["auto", "default-2024-11-15"] | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    hybrid_search: HybridSearch | None = None


Attributes = Annotated[dict[Key, Attribute], Field(max_length=16)]
"""Attributes of a file in a vector store, which searches can filter by."""
