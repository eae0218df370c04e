"""Adapters to upstreams, each behind the engine's `Model` port."""
