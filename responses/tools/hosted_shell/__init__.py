"""The hosted shell: commands that a model writes, run in a container of the sandbox service."""
