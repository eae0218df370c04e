"""The life cycle of a response: create, queue, execute in a worker, resume, cancel and sweep."""
