"""Endpoints of `/v1/skills`."""
