"""Sets of roles that may open a page or perform an action.

Administrators (superusers) may do everything that a page offers. Operators and platform auditors have their role in
every team, members in theirs. Reading content is a separate permission, see `tenants.console.content_access`.
"""

from collections.abc import Set as AbstractSet

from tenants.models import Role, StaffRole

AnyRole = Role | StaffRole
Roles = AbstractSet[AnyRole]

STAFF: frozenset[AnyRole] = frozenset(StaffRole)
MEMBERS: frozenset[AnyRole] = frozenset(Role)
EVERY_ROLE: frozenset[AnyRole] = STAFF | MEMBERS
# Administrators pass every check, so an empty set leaves only them.
ADMINISTRATORS_ONLY: frozenset[AnyRole] = frozenset()
LEADS: frozenset[AnyRole] = frozenset({Role.TEAM_LEAD})
OPERATORS: frozenset[AnyRole] = frozenset({StaffRole.OPERATOR})
CONTRIBUTORS: frozenset[AnyRole] = frozenset({Role.TEAM_LEAD, Role.DEVELOPER})
