"""How models and upstreams fare, and trying them."""
