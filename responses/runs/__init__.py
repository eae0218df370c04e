"""Runs: their execution, recording and storage, and queries for stored runs."""
