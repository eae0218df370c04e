"""Runs: execution, recording, storage, and reading them back."""
