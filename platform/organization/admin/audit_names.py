"""Names of the actors and targets of audit lines, read with one query for each kind of object on the page."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.apps import apps
from django.contrib.auth.models import User
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from console.widgets import two_lines
from tenants.models import AuditEvent


class Named(NamedTuple):
    """A model whose rows are named in the audit log, and the lookup of a row's name."""

    model: str
    name: str = "name"


_TEAM = Named("tenants.Team")
# By the prefix of an id. The models are given by name: some belong to packages that depend on this one.
_BY_PREFIX = {
    "team_": _TEAM,
    "key_": Named("tenants.ApiKey"),
    "adminkey_": Named("tenants.AdminKey"),
    "svcacct_": Named("tenants.ServiceAccount"),
    "invite_": Named("tenants.Invite", "email"),
    "upst_": Named("tenants.Upstream"),
    "cnct_": Named("tenants.Connector"),
    "sengine_": Named("tenants.SearchEngine"),
    "we_": Named("responses.WebhookEndpoint"),
    "pmpt_": Named("responses.PromptTemplate"),
    "vs_": Named("responses.VectorStore"),
    "file-": Named("conversations.File", "filename"),
    "skill_": Named("skills.Skill"),
    "cntr_": Named("containers.Container"),
}
# By the area of the action, for objects whose id is a number.
_BY_AREA = {
    "model": Named("tenants.Model"),
    "prices": Named("tenants.Model"),
    "membership": Named("tenants.Membership", "user__username"),
    "staff_member": Named("tenants.StaffMember", "user__username"),
    "user": Named("auth.User", "username"),
    "guardrail": Named("tenants.Guardrail"),
}
# In characters. A longer name would make a row of the list as high as a paragraph on a narrow screen.
_MAX_NAME = 40
_SCHEMES = frozenset({"key", "model"})
Reference = tuple[Named, str]


class Names:
    """Names of what the audit lines of a page mention, as far as the current transaction may see the objects."""

    def __init__(self, events: Iterable[AuditEvent]) -> None:
        wanted: dict[Named, set[str]] = defaultdict(set)
        people = set()
        for event in events:
            for kind, row_id in filter(None, (_reference(event.actor), _target(event))):
                wanted[kind].add(row_id)
            wanted[_TEAM].update(_team_ids(event))
            people |= {text.removeprefix("user:") for text in (event.actor, event.target) if text.startswith("user:")}
        self._rows: dict[Reference, str] = {
            (kind, str(row_id)): str(name)
            for kind, ids in wanted.items()
            for row_id, name in apps.get_model(kind.model)
            ._default_manager.filter(pk__in=ids)
            .values_list("pk", kind.name)
        }
        found = User.objects.filter(username__in=people).only("username", "first_name", "last_name") if people else ()
        self._people = {f"user:{person.get_username()}": person.get_full_name() for person in found}

    def actor(self, event: AuditEvent) -> str:
        """Return the name of the actor; empty if it is not known or has none besides its id."""
        return self._name(event.actor, _reference(event.actor))

    def target(self, event: AuditEvent) -> str:
        """Return the name of the target. A deleted object has the name that the line recorded."""
        return self._name(event.target, _target(event)) or _recorded_name(event)

    def teams(self, event: AuditEvent) -> str:
        """Return the names of the teams of the line that the viewer sees, separated by commas."""
        names = (self._rows.get((_TEAM, team_id), "") for team_id in _team_ids(event))
        return ", ".join(sorted(filter(None, names)))

    def _name(self, text: str, reference: Reference | None) -> str:
        return self._people.get(text, "") if reference is None else self._rows.get(reference, "")


def named(name: str, public_id: str | SafeString) -> str | SafeString:
    """Return a cell with a name above its id, or only the id if there is no name."""
    return two_lines(Truncator(name).chars(_MAX_NAME), public_id) if name else public_id


def _team_ids(event: AuditEvent) -> list[str]:
    return event.team_ids or ([event.team_id] if event.team_id else [])


def _reference(text: str) -> Reference | None:
    """Return what an actor or a target such as `key:key_…` or `team_…` refers to."""
    scheme, _, rest = text.partition(":")
    row_id = rest if scheme in _SCHEMES else text
    kind_of_id = next((kind for prefix, kind in _BY_PREFIX.items() if row_id.startswith(prefix)), None)
    return None if kind_of_id is None else (kind_of_id, row_id)


def _target(event: AuditEvent) -> Reference | None:
    row_id = event.target.removeprefix("model:")
    kind = _BY_AREA.get(event.action.partition(".")[0])
    # The limit of the digits is that of the column.
    is_number = row_id.isascii() and row_id.isdigit() and len(row_id) <= 18
    return (kind, row_id) if kind is not None and is_number else _reference(event.target)


def _recorded_name(event: AuditEvent) -> str:
    recorded: list[Mapping[str, Any]] = [values for values in (event.after, event.before) if isinstance(values, dict)]
    texts = (values.get(key) for key in ("name", "object", "email", "user") for values in recorded)
    return next((text for text in texts if isinstance(text, str)), "")
