"""Errors of the launcher."""


class LaunchError(Exception):
    """The platform cannot start or continue. The message is shown in the terminal."""
