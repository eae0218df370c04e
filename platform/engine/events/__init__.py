"""Events of a run: their types, the response object they carry, and the fold of a log into a response."""
