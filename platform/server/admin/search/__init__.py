"""Search in the admin: by id, by text, and the command palette."""
