"""Guided page that connects an upstream: its server, its models and their prices."""
