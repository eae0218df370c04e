"""Search in the console: ids, full text, the command palette."""
