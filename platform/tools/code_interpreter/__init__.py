"""Code interpreter: runs Python in a container of the sandbox service."""
