"""Invitations to create an account: a link that an administrator passes on, and the page behind it."""

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
    "status_of",
]
