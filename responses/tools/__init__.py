"""Hosted tools, one folder per kind, and the registry that assembles the tools of a run."""
