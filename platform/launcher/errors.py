"""Errors of the launcher."""


class LaunchError(Exception):
    """The platform cannot start or continue. The message is shown in the terminal."""

    exit_code = 1


class InstallationInterrupted(LaunchError):
    """Ctrl-C during the installation."""

    exit_code = 130  # 128 + SIGINT, as shells report it
