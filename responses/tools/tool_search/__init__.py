"""Tool search: finds tools whose loading was deferred."""
