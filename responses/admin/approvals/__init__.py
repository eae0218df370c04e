"""Approvals in the console: the inbox of decisions for which responses wait, and the page of a decision."""
