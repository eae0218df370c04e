"""Invitations to create an account: the link that is sent to a person, and the page that it opens."""

from tenants.invitations.services import (
    EmailTaken,
    NotPending,
    ProjectRole,
    accept,
    create_invite,
    delete_invite,
    find_by_token,
    find_pending,
    join,
    path_of,
    pending_of,
    status_of,
)

__all__ = [
    "EmailTaken",
    "NotPending",
    "ProjectRole",
    "accept",
    "create_invite",
    "delete_invite",
    "find_by_token",
    "find_pending",
    "join",
    "path_of",
    "pending_of",
    "status_of",
]
