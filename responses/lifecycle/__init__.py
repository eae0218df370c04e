"""The life of a response: create, queue, execute in a worker, resume, cancel, sweep."""
