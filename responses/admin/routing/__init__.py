"""Health of models and upstreams, test calls."""
