"""Errors of the launcher."""

from typing import Self

# Exit codes of sysexits.h. Service managers restart a process after NOT_READY, but not after WRONG_SETTINGS.
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
        """Return the refusal for `ImproperlyConfigured` or an error of ours, with its exit code if it has one."""
        return cls(str(error), exit_code=getattr(error, "exit_code", WRONG_SETTINGS))


class InstallationInterrupted(LaunchError):
    """The installation was interrupted by Ctrl-C."""

    exit_code = 130  # 128 + SIGINT, as shells report it
