"""Console pages of upstreams, models, routes and prices."""

from routing.admin import prices, route_page, routes, upstream_calls, upstreams

__all__ = ["prices", "route_page", "routes", "upstream_calls", "upstreams"]
