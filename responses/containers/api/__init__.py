"""The HTTP side of containers."""
