"""The objects that the endpoints of `/v1/organization` return."""

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from core.http.objects import Deleted, UnixTime, one_of

ProjectRole = Annotated[str, one_of("owner", "member", "auditor")]
ServiceAccountRole = Annotated[str, one_of("member", "none")]


class Project(TypedDict):
    """A project: a team of this platform."""

    id: str
    object: Literal["organization.project"]
    name: str
    created_at: UnixTime
    archived_at: int | None
    status: Literal["active", "archived"]


class UserProject(TypedDict):
    """A project of a user."""

    id: str
    name: str
    role: ProjectRole


class UserProjectList(TypedDict):
    """The projects of a user."""

    object: Literal["list"]
    data: list[UserProject]


class OrganizationUser(TypedDict):
    """A user of the platform."""

    id: str
    object: Literal["organization.user"]
    name: str
    email: str | None
    role: Literal["owner", "reader"]
    added_at: UnixTime
    is_service_account: Literal[False]
    projects: UserProjectList


class ProjectUser(TypedDict):
    """A user of a project."""

    id: str
    object: Literal["organization.project.user"]
    name: str
    email: str | None
    role: ProjectRole
    added_at: UnixTime


class InviteProject(TypedDict):
    """A project of an invite."""

    id: str
    role: ProjectRole


class Invite(TypedDict):
    """An invitation to create an account."""

    id: str
    object: Literal["organization.invite"]
    email: str
    role: Literal["reader"]
    status: Annotated[str, one_of("accepted", "expired", "pending")]
    created_at: UnixTime
    expires_at: UnixTime
    accepted_at: int | None
    projects: list[InviteProject]


class AdminApiKeyOwner(TypedDict):
    """The administrator who created an admin key; all null for keys that were created on the command line."""

    type: Literal["user"] | None
    object: Literal["organization.user"] | None
    id: str | None
    name: str | None
    created_at: int | None
    role: Literal["owner"] | None


class AdminApiKey(TypedDict):
    """An admin key."""

    id: str
    object: Literal["organization.admin_api_key"]
    name: str
    redacted_value: str
    created_at: UnixTime
    expires_at: int | None
    last_used_at: int | None
    owner: AdminApiKeyOwner


class KeyUser(TypedDict):
    """The person who created a key of a project."""

    id: str
    name: str
    email: str
    created_at: UnixTime
    role: Annotated[str, one_of("owner", "member", "auditor", "none")]


class KeyServiceAccount(TypedDict):
    """The service account that a key of a project belongs to."""

    id: str
    name: str
    created_at: UnixTime
    role: ServiceAccountRole


class ProjectApiKeyOwner(TypedDict):
    """The person or service account that a key belongs to; neither for keys that were created on the command line."""

    type: Literal["user", "service_account"] | None
    user: KeyUser | None
    service_account: KeyServiceAccount | None


class ProjectApiKey(TypedDict):
    """An API key of a project."""

    id: str
    object: Literal["organization.project.api_key"]
    name: str
    redacted_value: str
    created_at: UnixTime
    expires_at: int | None
    last_used_at: int | None
    owner: ProjectApiKeyOwner
    owner_project_access: Literal["active", "inactive"]


class ServiceAccount(TypedDict):
    """A service account: a program that owns API keys of a project."""

    id: str
    object: Literal["organization.project.service_account"]
    name: str
    role: ServiceAccountRole
    created_at: UnixTime


class ServiceAccountApiKey(TypedDict):
    """A new API key with its secret."""

    id: str
    object: Literal["organization.project.service_account.api_key"]
    name: str
    value: str
    created_at: UnixTime
    expires_at: int | None


class ServiceAccountWithKey(ServiceAccount):
    """A new service account."""

    api_key: ServiceAccountApiKey | None


class ProjectModelPermissions(TypedDict):
    """The models that a project may or may not use."""

    object: Literal["project.model_permissions"]
    mode: Annotated[str, one_of("allow_list", "deny_list")]
    model_ids: list[str]


class DeletedProjectModelPermissions(TypedDict):
    """Confirmation of a deletion."""

    object: Literal["project.model_permissions.deleted"]
    deleted: Literal[True]


class HostedToolPermission(TypedDict):
    """Permission to use a hosted tool."""

    enabled: bool


class ProjectHostedToolPermissions(TypedDict):
    """The hosted tools that a project may use."""

    code_interpreter: HostedToolPermission
    file_search: HostedToolPermission
    image_generation: HostedToolPermission
    mcp: HostedToolPermission
    web_search: HostedToolPermission


class ProjectRateLimit(TypedDict):
    """Rate limits of a project."""

    id: str
    object: Literal["project.rate_limit"]
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int
    max_requests_per_1_day: int


class SpendLimitEnforcement(TypedDict):
    """State of a spend limit."""

    status: Literal["inactive", "enforcing"]


class ProjectSpendLimit(TypedDict):
    """The amount that a project may spend in a month."""

    object: Literal["project.spend_limit"]
    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: int
    enforcement: SpendLimitEnforcement


class DeletedProjectSpendLimit(TypedDict):
    """Confirmation of a deletion."""

    object: Literal["project.spend_limit.deleted"]
    deleted: Literal[True]


class SpendAlertChannel(TypedDict):
    """Recipients of a spend alert."""

    type: Literal["email"]
    recipients: list[str]


class ProjectSpendAlert(TypedDict):
    """An alert when a project has spent an amount in a month."""

    id: str
    object: Literal["project.spend_alert"]
    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: int
    notification_channel: SpendAlertChannel


class AuditLog(TypedDict):
    """A line of the audit log. The property with the name of the line's type has the id of the changed object."""

    id: str
    effective_at: int
    type: str
    actor: dict[str, Any] | None
    project: dict[str, Any] | None
    details: dict[str, Any]


DeletedOrganizationUser = Deleted[OrganizationUser, Literal["organization.user.deleted"]]
DeletedProjectUser = Deleted[ProjectUser, Literal["organization.project.user.deleted"]]
DeletedInvite = Deleted[Invite, Literal["organization.invite.deleted"]]
DeletedAdminApiKey = Deleted[AdminApiKey, Literal["organization.admin_api_key.deleted"]]
DeletedProjectApiKey = Deleted[ProjectApiKey, Literal["organization.project.api_key.deleted"]]
DeletedServiceAccount = Deleted[ServiceAccount, Literal["organization.project.service_account.deleted"]]
DeletedProjectSpendAlert = Deleted[ProjectSpendAlert, Literal["project.spend_alert.deleted"]]
