"""What has been said: items and where they stand. Knows nothing of inference."""
