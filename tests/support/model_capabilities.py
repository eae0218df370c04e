"""Models with other capabilities than those of which nothing is known."""

from typing import Any

from tenants.models import Model, Upstream
from tests.support.upstream import Script


def describe(script: Script, **capabilities: Any) -> Script:
    """Say what the script's model can do; columns that are not named keep their defaults.

    Before the first request for the model: a route is remembered for a second.
    """
    upstream = Upstream.objects.get(name="scripted")
    Model.objects.create(name=script.model, upstream=upstream, **capabilities)
    return script
