"""Models behind the admin API (`/v1/organization`): admin keys and service accounts."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from typing_extensions import override

from core.clock import now
from core.ids import new_id, new_short_id
from tenants.models.teams import IdField, Team

# The same prefix as OpenAI's. It decides in which table a key is looked up (`tenants.directory`).
ADMIN_KEY_PREFIX = "sk-admin-"


def admin_key_id() -> str:
    """Return a new admin key id."""
    return new_short_id("adminkey")


def service_account_id() -> str:
    """Return a new service account id."""
    return new_short_id("svcacct")


class AdminScope(models.TextChoices):
    """Permissions of an admin key, independent of the scopes of teams' keys: neither implies the other."""

    ALL = "admin.*", "All permissions of the admin API"
    PROJECTS_READ = "admin.projects.read", "Read projects and their permissions"
    PROJECTS_WRITE = "admin.projects.write", "Create, change and archive projects, change their permissions"
    KEYS_READ = "admin.keys.read", "Read API keys and service accounts"
    KEYS_WRITE = "admin.keys.write", "Create service accounts with keys, change and revoke keys"
    USERS_READ = "admin.users.read", "Read users and the users of projects"
    USERS_WRITE = "admin.users.write", "Delete users, change the users of projects"
    INVITES_READ = "admin.invites.read", "Read invites"
    INVITES_WRITE = "admin.invites.write", "Create and delete invites"
    LIMITS_READ = "admin.limits.read", "Read rate limits, spend limits and spend alerts"
    LIMITS_WRITE = "admin.limits.write", "Change rate limits, spend limits and spend alerts"
    AUDIT_LOGS_READ = "admin.audit_logs.read", "Read the audit log"
    ADMIN_KEYS_READ = "admin.admin_keys.read", "Read admin keys"
    ADMIN_KEYS_WRITE = "admin.admin_keys.write", "Revoke admin keys"
    USAGE_READ = "admin.usage.read", "Read usage and costs of every team"


class AdminKey(models.Model):
    """A key for the admin API. It belongs to no team and cannot call models. Only its HMAC is stored."""

    id = IdField(default=admin_key_id)
    name = models.CharField(max_length=120)
    digest = models.CharField(max_length=64, editable=False)
    prefix = models.CharField(max_length=24, editable=False)
    last_four = models.CharField(max_length=4, editable=False)
    scopes = ArrayField(models.CharField(max_length=40))
    created_at = models.DateTimeField(default=now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False, related_name="+"
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    allowed_addresses = ArrayField(
        models.CharField(max_length=50), null=True, blank=True, help_text="Leave empty to allow any IP address."
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_address = models.CharField(max_length=50, blank=True, default="", editable=False)
    last_used_agent = models.CharField(max_length=200, blank=True, default="", editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["digest"], name="admin_key_digest_once")]

    @override
    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…{self.last_four})"


class ServiceAccount(models.Model):
    """A program of a team that owns API keys. Deleting the account revokes its keys.

    The role is `member`, or `none` if the account must not have keys.
    """

    id = IdField(default=service_account_id)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="service_accounts")
    name = models.CharField(max_length=120)
    role = models.CharField(max_length=10, choices=[("member", "Member"), ("none", "None")], default="member")
    created_at = models.DateTimeField(default=now, editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        indexes = [models.Index(fields=["team", "created_at"], name="service_account_by_team")]

    @override
    def __str__(self) -> str:
        return self.name


def invite_id() -> str:
    """Return a new id of an invitation."""
    # Not a short id, as it is part of a link.
    return new_id("invite")


class Invite(models.Model):
    """An invitation to create an account. It can be accepted once, by anyone who has the link, until it expires.

    `projects` lists the teams that the account joins, and its role in each of them, as `{"id": …, "role": …}`.
    """

    id = IdField(default=invite_id)
    email = models.EmailField("e-mail address")
    projects = models.JSONField("teams", default=list, blank=True)
    created_at = models.DateTimeField(default=now, editable=False)
    expires_at = models.DateTimeField(editable=False)
    accepted_at = models.DateTimeField(null=True, editable=False)
    accepted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, editable=False, related_name="+"
    )

    class Meta:
        indexes = [
            models.Index(fields=["created_at", "id"], name="invite_by_time"),
            models.Index(fields=["email"], name="invite_by_email"),
        ]

    @override
    def __str__(self) -> str:
        return self.email
