"""Sums by the hour: what is summed, rolling closed hours up, and reading any span of time from sums and rows."""
