"""Console pages of upstreams, models, routes and prices."""

from routing.admin import prices, route_page, routes, upstream_calls, upstreams
from routing.admin.guided import pages

__all__ = ["pages", "prices", "route_page", "routes", "upstream_calls", "upstreams"]
