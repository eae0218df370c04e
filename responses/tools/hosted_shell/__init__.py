"""Hosted shell: runs commands of the model in a container of the sandbox service."""
