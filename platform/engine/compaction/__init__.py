"""Compaction: shortening a context that outgrows the model."""
