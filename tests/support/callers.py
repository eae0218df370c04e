"""Teams with keys that are created several at a time: one by one, they take a third of an API test's time."""

import uuid
from collections import deque

from django.db import connection

from tenants import scope, services
from tenants.models import ApiKey, AuditEvent, Team
from tests.support.api import Caller

# Pages that list the newest teams must still show those of a test.
_SIZE = 20


class CallerPool:
    """Callers as `services.ensure_team` and `services.create_key` create them, with their lines of the audit log."""

    def __init__(self) -> None:
        self._ready: deque[Caller] = deque()

    def take(self) -> Caller | None:
        """Return a caller that no test has used; None within a transaction, which may be rolled back."""
        if not self._ready and not connection.in_atomic_block:
            self._fill()
        return self._ready.popleft() if self._ready else None

    def _fill(self) -> None:
        teams = [Team(name=f"team {uuid.uuid4().hex}") for _ in range(_SIZE)]
        keys = [services.unsaved_key(team=team, spec=services.KeySpec(name="test")) for team in teams]
        events = []
        for team, new in zip(teams, keys, strict=True):
            after = {"name": new.key.name, "scopes": new.key.scopes, "prefix": new.key.prefix}
            lines = (("team.created", team.pk, {"name": team.name}), ("api_key.created", new.key.pk, after))
            for action, target, changed in lines:
                event = AuditEvent(team=team, actor="system", action=action, target=target, before={}, after=changed)
                events.append(event)
        with scope.every_team():
            Team.objects.bulk_create(teams)
            ApiKey.objects.bulk_create([new.key for new in keys])
            AuditEvent.objects.bulk_create(events)
        self._ready.extend(
            Caller(team=team, key=new.key, secret=new.secret) for team, new in zip(teams, keys, strict=True)
        )
