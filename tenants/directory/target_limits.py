"""Limits of a target, and the restrictions that decide which requests it takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLimits:
    """Limits of a target for all of its requests; None means no limit. `target_id` is the primary key of its row."""

    target_id: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @staticmethod
    def of(row: Any) -> "TargetLimits | None":
        """Return the limits of a row of `Model`, or None if it has none."""
        limits = TargetLimits(
            target_id=row.pk,
            requests_per_minute=row.requests_per_minute,
            tokens_per_minute=row.tokens_per_minute,
            concurrent_requests=row.concurrent_requests,
        )
        return None if limits == TargetLimits(target_id=row.pk) else limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """The requests that a restricted target takes: those of some API keys, with some pairs in their `metadata`.

    An empty set of keys or pairs does not restrict it.
    """

    keys: frozenset[str] = frozenset()
    metadata: frozenset[tuple[str, str]] = frozenset()

    @staticmethod
    def of(row: Any) -> "Restriction | None":
        """Return the restriction of a row of `Model` with `key_ids`, or None if it takes all requests."""
        keys, metadata = frozenset(row.key_ids), frozenset(row.only_metadata.items())
        return Restriction(keys=keys, metadata=metadata) if keys or metadata else None

    def allows(self, key_id: str, metadata: Mapping[str, str]) -> bool:
        """Return whether the target takes a request of this key with this metadata."""
        return (not self.keys or key_id in self.keys) and self.metadata <= metadata.items()

    @property
    def count(self) -> int:
        """The number of conditions, by which targets are ordered: a target with more of them is more specific."""
        return bool(self.keys) + bool(self.metadata)
