"""The schema snapshot, backup and restore."""
