"""The targets at which a request was tried, in one line."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenants.models import Upstream


def tried_targets(
    failures: Sequence[Mapping[str, Any]], *, upstream_id: str, upstream_model: str, has_failed: bool
) -> str:
    """Return which target answered and why those before it failed; empty if only one was tried.

    Each failure has `upstream`, `reason` and `was_replaced`, as `engine.failed_targets` stores them.
    """
    replaced = [failure for failure in failures if failure["was_replaced"]]
    if not replaced:
        return ""
    if has_failed:
        return f"No target answered; tried: {_listed(failures)}"
    name = Upstream.objects.filter(pk=upstream_id).values_list("name", flat=True).first()
    return f"Answered by {name or upstream_id} ({upstream_model}); tried before: {_listed(replaced)}"


def _listed(failures: Iterable[Mapping[str, Any]]) -> str:
    # Without duplicates, in the order of the requests: each turn may have tried the same targets.
    return "; ".join(dict.fromkeys(f"{failure['upstream']}: {failure['reason']}" for failure in failures))
