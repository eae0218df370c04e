"""Invitations that leads send to people without an account, on the members tab of their team."""

import logging
import smtplib
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.http import HttpRequest

from core.clock import now
from core.ids import new_id
from deliveries.notifications.mail import sender_domain
from tenants import invitations
from tenants.console.viewer import viewer_of
from tenants.invitations import ProjectRole
from tenants.members import public_role, role_of
from tenants.models import AuditEvent, Invite, Role, Team

logger = logging.getLogger(__name__)
# A lead must not be able to send any number of mails to strangers.
MAX_A_DAY = 50
_MAX_SHOWN = 100
NO_USER = "There is no active user with exactly this username or e-mail address."
_SUBJECT = "Invitation to the team {team}"
_TEXT = """{inviter} invites you to the team {team} on the Responses Platform as {role}.

Open this link to create your account:
{link}

It works once and is valid until {until:%d %B %Y %H:%M} UTC. If you do not know the sender, ignore this mail.
"""


def link_of(invite: Invite) -> str:
    """Return the link that accepts an invitation."""
    return f"{settings.PUBLIC_URL}{invitations.path_of(invite)}"


def role_label(name: str) -> str:
    """Return the label of a role that an invitation names as the admin API does."""
    return str(role_of(name).label)


def invitations_of(team: Team) -> list[dict[str, Any]]:
    """Return the pending invitations of a team with their roles and links, newest first."""
    found = invitations.pending_of(team)[:_MAX_SHOWN]
    return [
        {"invite": invite, "role": role_label(invite.projects[0]["role"]), "link": link_of(invite)} for invite in found
    ]


def invite_person(request: HttpRequest, team: Team, address: str, role: Role) -> None:
    """Invite the person with this e-mail address, send the link by mail, and report the result as a message."""
    try:
        validate_email(address)
    except ValidationError:
        messages.error(request, NO_USER)
        return
    if invitations.pending_of(team).filter(email__iexact=address).exists():
        messages.info(request, f"{address} is invited already. The link is listed below.")
        return
    # Counted in the audit log, which also has the invitations that were deleted since then.
    sent = AuditEvent.objects.filter(team=team, action="invite.sent", occurred_at__gte=now() - timedelta(days=1))
    if sent.count() >= MAX_A_DAY:
        messages.error(request, f"This team has sent {MAX_A_DAY} invitations within a day. Try again tomorrow.")
        return
    viewer, project = viewer_of(request), ProjectRole(team=team, role=public_role(role))
    try:
        invite = invitations.create_invite(email=address, projects=[project], actor=viewer.actor)
    except invitations.EmailTaken:
        # The address of an inactive account, or of several. The same message as for unknown users, so that leads
        # cannot probe for accounts.
        messages.error(request, NO_USER)
        return
    if not settings.EMAIL_HOST:
        messages.success(request, f"{address} is invited. Copy the link below and send it to the person.")
    elif _send_mail(invite, team, role, inviter=viewer.name):
        messages.success(request, f"{address} is invited and gets the link by mail. It is also listed below.")
    else:
        messages.warning(
            request, f"{address} is invited, but the mail could not be sent. Copy the link below and send it yourself."
        )


def delete_invitation(request: HttpRequest, team: Team, invite_id: str) -> None:
    """Delete a pending invitation of a team and report the result as a message."""
    found = invitations.pending_of(team).filter(pk=invite_id) if "\0" not in invite_id else ()
    # Another lead may have deleted it, or the person may have accepted it.
    with suppress(invitations.NotPending):
        for invite in found:
            invitations.delete_invite(invite=invite, actor=viewer_of(request).actor)
            messages.success(request, f"The invitation of {invite.email} was deleted. Its link no longer works.")
            return
    messages.error(request, "This invitation is no longer open.")


def _send_mail(invite: Invite, team: Team, role: Role, *, inviter: str) -> bool:
    # Not through the outbox: it stores the text of mails, and the link is a secret.
    text = _TEXT.format(
        inviter=inviter, team=team.name, role=role.label.lower(), link=link_of(invite), until=invite.expires_at
    )
    message = EmailMessage(
        # A name with a line break would be refused as a header.
        subject=" ".join(_SUBJECT.format(team=team.name).split()),
        body=text,
        to=[invite.email],
        headers={"Message-ID": f"<{new_id('mail')}@{sender_domain()}>", "Auto-Submitted": "auto-generated"},
    )
    try:
        message.send()
    except (OSError, smtplib.SMTPException, ValueError) as failed:
        logger.warning("the mail of an invitation was not sent", extra={"invite": invite.pk, "error": str(failed)})
        return False
    return True
