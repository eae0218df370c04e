"""Who is calling: a frozen value that every service takes."""

from dataclasses import dataclass
from datetime import datetime

from kernel.errors import Forbidden
from tenants.models import Scope, ToolKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A team acting through one of its keys. `grace_seconds` None: stored runs go on to their end."""

    team_id: str
    key_id: str
    scopes: frozenset[str]
    allowed_models: frozenset[str] | None
    tools: frozenset[str]
    expires_at: datetime | None
    grace_seconds: int | None

    # DRF asks its "user" this.
    is_authenticated = True

    @property
    def actor(self) -> str:
        """Who the audit log names."""
        return f"key:{self.key_id}"

    def require(self, scope: Scope) -> None:
        """Raise the 403 of a key that lacks the scope."""
        if Scope.ALL.value not in self.scopes and scope.value not in self.scopes:
            raise Forbidden(f"Your API key lacks the scope '{scope.value}' that this request needs.")

    def require_tool(self, kind: ToolKind, *, param: str) -> None:
        """Raise the 403 of a team or a key that may not use the tool."""
        self.require_any_tool(kind, param=param)

    def require_any_tool(self, *kinds: ToolKind, param: str | None = None) -> None:
        """Raise the 403 of a team or a key that may use none of these tools."""
        if self.tools.isdisjoint({ToolKind.ALL.value, *(kind.value for kind in kinds)}):
            named = " or ".join(f"'{kind.value}'" for kind in kinds)
            message = f"Your team or your API key is not allowed the tool {named}."
            raise Forbidden(message, param=param, code="tool_not_allowed")

    def may_use(self, model: str) -> bool:
        """Whether the key is allowed this model name at all."""
        return self.allowed_models is None or model in self.allowed_models
