"""Django's command line. Unlike the rest of the launcher, it needs the packages."""

from functools import partial

from django.core.management import BaseCommand, ManagementUtility
from typing_extensions import override


class CommandLine(ManagementUtility):
    """The command line of Django, which refuses abbreviated options.

    With `add_upstream --api responses`, argparse would store "responses" as the `--api-key`.
    """

    @override
    def fetch_command(self, subcommand: str) -> BaseCommand:
        """Return the command, with a parser that knows only complete options."""
        command = super().fetch_command(subcommand)
        command.create_parser = partial(command.create_parser, allow_abbrev=False)  # type: ignore[method-assign]
        return command
