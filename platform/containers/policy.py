"""Network policies of containers: their schema, and the check against the operator's settings."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import Field

from core.errors import InvalidValue, UnsupportedParameter, UnsupportedValue
from core.http.wire import BY_TYPE, Wire

MAX_DOMAINS = 100
ANY_DOMAIN = "*"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)


class NetworkDisabled(Wire):
    """Disable outbound network access."""

    type: Literal["disabled"]


class NetworkAllowlist(Wire):
    """Allow outbound network access only to specified domains."""

    type: Literal["allowlist"]
    allowed_domains: Annotated[list[Annotated[str, Field(max_length=253)]], Field(min_length=1, max_length=MAX_DOMAINS)]
    # repr=False: secrets must not appear in logs or tracebacks.
    domain_secrets: list[Any] | None = Field(default=None, repr=False)


NetworkPolicy = Annotated[NetworkDisabled | NetworkAllowlist, BY_TYPE]


def check_policy(policy: NetworkPolicy | None, *, param: str) -> list[str]:
    """Return the domains that a policy allows. Raises an API error if the operator does not allow it."""
    if not isinstance(policy, NetworkAllowlist):
        return []
    if policy.domain_secrets:
        # Connections are encrypted from end to end, so there is no place where a secret could be put into a request.
        raise UnsupportedParameter("Domain secrets are not supported by this server.", param=f"{param}.domain_secrets")
    permitted = settings.CONTAINER_ALLOWED_DOMAINS
    if not permitted:
        raise UnsupportedParameter(
            "Containers on this server have no network access: 'network_policy' must be 'disabled'.", param=param
        )
    domains = []
    for index, domain in enumerate(policy.allowed_domains):
        where = f"{param}.allowed_domains[{index}]"
        if _DOMAIN.fullmatch(domain.lower()) is None:
            raise InvalidValue(f"Invalid '{where}': expected a domain without scheme, port and path.", param=where)
        if ANY_DOMAIN not in permitted and domain.lower() not in permitted:
            raise UnsupportedValue(f"Containers on this server may not reach '{domain}'.", param=where)
        domains.append(domain.lower())
    return list(dict.fromkeys(domains))


def permitted(domains: Sequence[str]) -> list[str]:
    """Return the given domains that the operator allows now: the setting may have changed since the request."""
    allowed = settings.CONTAINER_ALLOWED_DOMAINS
    return [domain for domain in domains if ANY_DOMAIN in allowed or domain in allowed]


def public_policy(domains: Sequence[str]) -> dict[str, Any]:
    """Return the policy as the API shows it."""
    return {"type": "allowlist", "allowed_domains": list(domains)} if domains else {"type": "disabled"}
