"""HTTP API of containers."""
