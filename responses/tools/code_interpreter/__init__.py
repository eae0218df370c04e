"""The code interpreter: Python that a model writes, run in a container of the sandbox service."""
