"""The one error of the launcher."""


class LaunchError(Exception):
    """The platform cannot start or go on; the message is one sentence for the person at the terminal."""
