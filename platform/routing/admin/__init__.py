"""Console pages of upstreams, models and prices."""

from routing.admin import prices, upstreams

__all__ = ["prices", "upstreams"]
