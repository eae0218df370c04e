"""The leases of the runs that a process executes: renew them, find lost runs, and release runs to workers."""

from collections.abc import Mapping

from core.clock import shared_now
from core.process_name import process_name
from core.work.leases import lease_until
from responses.models import RUNNING, Response, Status
from responses.runs.identity import RunIdentity
from tenants import scope


def find_lost(tokens: Mapping[str, int]) -> list[str]:
    """Return the runs that have ended, were deleted, or have a different lease token than `tokens`."""
    with scope.every_team():
        running = Response.objects.filter(pk__in=[*tokens], status__in=RUNNING)
        held = dict(running.values_list("pk", "lease_token"))
    return [response_id for response_id, token in tokens.items() if held.get(response_id) != token]


def renew(response_ids: list[str]) -> tuple[list[str], list[str]]:
    """Extend the leases of this process.

    Return the runs whose lease was renewed, and the runs that were cancelled, deleted or resumed elsewhere.
    """
    with scope.every_team():
        runs = Response.objects.filter(pk__in=response_ids)
        # The run writer locks the same rows in another order, so waiting for it could deadlock. Rows that it has locked
        # are skipped, because their leases are valid until the next renewal.
        mine = runs.filter(lease_owner=process_name())
        free = mine.select_for_update(skip_locked=True, no_key=True).filter(status__in=RUNNING)
        renewed = list(free.values_list("pk", flat=True))
        Response.objects.filter(pk__in=renewed).update(lease_until=lease_until())
        held = set(mine.exclude(status=Status.CANCELLED).values_list("pk", flat=True))
    return renewed, [response_id for response_id in response_ids if response_id not in held]


def followed_for(identity: RunIdentity) -> float:
    """Return the seconds for which the run still counts as followed; zero or less if it is not followed."""
    with scope.team(identity.team_id):
        until = Response.objects.values_list("followed_until", flat=True).filter(pk=identity.response_id).first()
    return (until - shared_now()).total_seconds() if until else 0


def release_to_workers(identity: RunIdentity, secrets: str) -> None:
    """Let workers claim a run of this process. Does nothing if the run was lost or has ended."""
    with scope.team(identity.team_id):
        mine = Response.objects.filter(pk=identity.response_id, lease_token=identity.lease_token, status__in=RUNNING)
        mine.update(handed_over_at=shared_now(), lease_owner=None, lease_until=None, secrets=secrets)
