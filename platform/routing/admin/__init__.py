"""Console pages of upstreams, models, routes and prices."""

from routing.admin import prices, routes, upstream_calls, upstreams

__all__ = ["prices", "routes", "upstream_calls", "upstreams"]
