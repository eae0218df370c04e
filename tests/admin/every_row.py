"""A seeded team with the rows that seeding does not create, so that every page has something to show."""

import uuid

from tenants import invitations, scope, services
from tenants.models import AdminKey, AdminScope, ApiKey, Invite, Team, Upstream
from tenants.models.notifications import DeliveryState
from tests.admin.crawling import TeamData
from tests.support.api import Caller
from tests.support.mail import add_mail


def team_with_every_row(team: Team) -> TeamData:
    """Add a mail, an admin key and an invitation. Return all rows of the team, and one of each platform table."""
    with scope.team(team.pk):
        caller = Caller(team=team, key=ApiKey.objects.filter(team=team)[0], secret="")
    add_mail(caller, state=DeliveryState.DELIVERED, next_attempt_at=None)
    subject = TeamData.of(team, markers=[])
    subject.rows[AdminKey] = [services.create_admin_key(name="test", scopes=[AdminScope.ALL.value]).key]
    subject.rows[Invite] = [
        invitations.create_invite(email=f"{uuid.uuid4().hex}@example.com", projects=[], actor="system")
    ]
    subject.rows[Upstream] = list(Upstream.objects.order_by("pk")[:1])
    return subject
