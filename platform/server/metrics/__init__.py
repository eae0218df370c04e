"""Metrics of a process and of the system, and the port that serves them."""
