"""Models with configured capabilities."""

from typing import Any

from tenants.models import Model, Upstream
from tests.support.upstream import Script


def describe(script: Script, **capabilities: Any) -> Script:
    """Set capabilities of the script's model; other columns keep their defaults.

    Must be called before the first request for the model, because routes are cached for a second.
    """
    upstream = Upstream.objects.get(name="scripted")
    Model.objects.create(name=script.model, upstream=upstream, **capabilities)
    return script
