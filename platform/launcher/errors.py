"""Errors of the launcher."""

from typing import Self

# From sysexits.h. Service managers restart a process after the second one, but not after the first.
WRONG_SETTINGS, NOT_READY = 78, 75


class LaunchError(Exception):
    """The platform cannot start or continue. The message is shown in the terminal."""

    exit_code = 1


class RefusedStart(LaunchError):
    """A process must not start: a setting is wrong, or the machine or the database is not ready for it."""

    def __init__(self, message: str, *, exit_code: int = WRONG_SETTINGS) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return the refusal for Django's `ImproperlyConfigured`; some of ours have an exit code of their own."""
        return cls(str(error), exit_code=getattr(error, "exit_code", WRONG_SETTINGS))


class InstallationInterrupted(LaunchError):
    """Ctrl-C during the installation."""

    exit_code = 130  # 128 + SIGINT, as shells report it
