"""What a process measures of its own load, and how teams take turns under it."""
