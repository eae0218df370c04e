"""Sentences about the effect of a route: which targets get new requests, and which ones if they fail."""

from collections.abc import Sequence
from itertools import groupby

from tenants.directory import Route

NO_TARGET = "No target takes these requests: they fail because the model is not found."


def route_sentence(name: str, targets: Sequence[Route]) -> str:
    """Return the effect of the targets of a public model, in the order in which requests try them."""
    groups = [list(members) for _, members in groupby(targets, key=lambda target: target.group)]
    if not groups:
        return NO_TARGET
    first, *others = groups
    text, model = _first(name, first), first[0].model
    for number, group in enumerate(others):
        text += f"; if {_all_fail(first)}, " if number == 0 else ", then "
        if group[0].model not in {name, model}:
            text += f"fallback model {group[0].model} at "
        text, model = text + _alternatives(group), group[0].model
    return f"{text}."


def _first(name: str, group: Sequence[Route]) -> str:
    model = group[0].model
    kind = "new requests" if model == name else f"new requests, as fallback model {model},"
    if len(group) == 1:
        return f"All {kind} go to {group[0].upstream.name}"
    (target, share), *others = _by_share(group)
    rest = "".join(f", {share} to {target.upstream.name}" for target, share in others)
    return f"{share} of {kind} go to {target.upstream.name}{rest}"


def _alternatives(group: Sequence[Route]) -> str:
    if len(group) == 1:
        return group[0].upstream.name
    return " or ".join(f"{target.upstream.name} ({share})" for target, share in _by_share(group))


def _by_share(group: Sequence[Route]) -> list[tuple[Route, str]]:
    total = sum(target.weight for target in group)
    return [(target, f"{100 * target.weight / total:.3g} %") for target in group]


def _all_fail(group: Sequence[Route]) -> str:
    match len(group):
        case 1:
            return "it fails"
        case 2:
            return "both fail"
    return "all of them fail"
