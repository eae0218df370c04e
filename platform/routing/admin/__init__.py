"""Console pages of upstreams, models and prices."""

from routing.admin import prices, upstream_calls, upstreams

__all__ = ["prices", "upstream_calls", "upstreams"]
