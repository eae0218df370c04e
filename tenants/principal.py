"""The authenticated caller of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal

from core.errors import Forbidden, ToolNotAllowed
from tenants.models import AdminScope, Scope, ToolKind

SubjectKind = Literal["team", "key", "end_user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimit:
    """A budget of a subject, in US dollars per period."""

    period: str
    amount: Decimal
    is_hard: bool
    allows_unknown_prices: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectLimits:
    """The limits of one subject: a team, an API key or an end user. `*` stands for each end user without own limits.

    `values` has the limits that are set, by column name of `LimitSet`.
    """

    kind: SubjectKind
    id: str
    values: Mapping[str, int] = field(hash=False)
    budgets: tuple[BudgetLimit, ...] = ()

    @property
    def hard_budgets(self) -> tuple[BudgetLimit, ...]:
        """The budgets that refuse calls."""
        return tuple(budget for budget in self.budgets if budget.is_hard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A team acting through one of its API keys, or the holder of an admin key, whose `team_id` is empty.

    - `tools`: the hosted tools that both the team and the key allow.
    - `grace_seconds`: the time for which a stored run continues after its client has disconnected; None: until it ends.
    - `rejects_unavailable_tools`: a request is rejected if this server cannot provide one of its hosted tools, even if
      the model could answer without the tool.
    - `weight`: the team's share of the capacity for which teams compete, relative to other teams.
    - `continues_without_servers`: a response continues without an MCP server whose tools cannot be listed.
    - `requires_approval`: MCP tools and servers whose calls require approval, whatever a request says.
    - `waits_for_approval`: background responses wait for approvals, unless a request says otherwise.
    - `allows_fallback_models`: a fallback model may answer in place of the requested one.
    - `limits`: the limits of the team, of the key and of every end user (`*`).
    - `limits_some_end_users`: some end users of the team have their own limits, which are looked up separately.
    - `time_zone`: the time zone in which the periods of the team's budgets begin.
    - `bills_estimates`: calls whose usage is unknown are billed by an estimate.
    """

    team_id: str
    key_id: str
    scopes: frozenset[str]
    allowed_models: frozenset[str] | None
    tools: frozenset[str]
    expires_at: datetime | None
    grace_seconds: int | None
    rejects_unavailable_tools: bool = False
    continues_without_servers: bool = False
    requires_approval: frozenset[str] = frozenset()
    waits_for_approval: bool = False
    allows_fallback_models: bool = True
    denied_models: frozenset[str] = frozenset()
    limits: tuple[SubjectLimits, ...] = field(default=())
    limits_some_end_users: bool = False
    bills_estimates: bool = True
    time_zone: str = "UTC"
    weight: int = 1

    # DRF expects this attribute of its users.
    is_authenticated = True

    @property
    def actor(self) -> str:
        """The caller as recorded in the audit log."""
        return f"key:{self.key_id}"

    @property
    def is_limited(self) -> bool:
        """True if any limit applies. Otherwise, requests need no call of Redis and no stored reservations."""
        return bool(self.limits or self.limits_some_end_users)

    @property
    def is_admin(self) -> bool:
        """True for an admin key, which may use the admin API and nothing else."""
        return not self.team_id

    def has(self, scope: Scope | AdminScope) -> bool:
        """Return true if the key has the scope.

        The scope `*` of a team's key includes every scope of a team, but no scope of the admin API. An admin key has a
        scope of teams only if the admin API has the same scope: `admin.usage.read` includes `usage.read`.
        """
        if self.is_admin:
            name = scope.value if scope.value.startswith("admin.") else f"admin.{scope.value}"
            return (
                scope is not Scope.ALL
                and name in AdminScope
                and not self.scopes.isdisjoint({AdminScope.ALL.value, name})
            )
        if isinstance(scope, AdminScope):
            return False
        return not self.scopes.isdisjoint({Scope.ALL.value, scope.value})

    def require(self, scope: Scope | AdminScope) -> None:
        """Raise `Forbidden` if the key lacks the scope."""
        if not self.has(scope):
            raise Forbidden(f"Your API key is missing the scope '{scope.value}', which this request requires.")

    def require_any_tool(self, *kinds: ToolKind, param: str | None = None) -> None:
        """Raise `Forbidden` if the team or the key may use none of these tools."""
        if self.tools.isdisjoint({ToolKind.ALL.value, *(kind.value for kind in kinds)}):
            names = " or ".join(f"'{kind.value}'" for kind in kinds)
            raise ToolNotAllowed(f"Your team or your API key is not allowed to use the tool {names}.", param=param)

    def may_use(self, model: str) -> bool:
        """Return true if the lists of models of the key and of its team allow this name."""
        return (self.allowed_models is None or model in self.allowed_models) and model not in self.denied_models
