"""Models with configured capabilities."""

from typing import Any

from tenants import services
from tenants.models import Model, Upstream
from tenants.prices import UNKNOWN, PriceList
from tests.support.upstream import Script


def describe(script: Script, *, prices: PriceList = UNKNOWN, **capabilities: Any) -> Script:
    """Set capabilities and prices of the script's model; other columns keep their defaults.

    Must be called before the first request for the model, because routes are cached for a second.
    """
    upstream = Upstream.objects.get(name="scripted")
    model = Model.objects.create(name=script.model, upstream=upstream, **capabilities)
    services.set_prices(model, prices.entries)
    return script
