"""Tenancy: teams, members, API keys, upstreams and models, usage records and the audit log."""
