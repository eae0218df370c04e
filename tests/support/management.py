"""Management commands that tests run as processes of their own."""

import os
import subprocess
from collections.abc import Mapping

from typing_extensions import override

from benchmarks.stack import Programs
from launcher.errors import LaunchError
from launcher.processes import ChildCommand, Process
from tests.support import preloaded


def manage(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a management command."""
    return preloaded.run(arguments, environment={**os.environ, **variables})


def succeed(*arguments: str, **variables: str) -> str:
    """Run a management command that must succeed and return its output."""
    done = manage(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


class ForkedPrograms(Programs):
    """Forks the processes of the platform from one that has loaded its libraries."""

    @override
    def start(self, command: ChildCommand) -> Process:
        return preloaded.start_child(command)

    @override
    def manage(self, environment: Mapping[str, str], *arguments: str) -> str:
        done = preloaded.run(arguments, environment={**os.environ, **environment})
        if done.returncode:
            raise LaunchError(f"`manage.py {arguments[0]}` failed:\n{done.stdout}{done.stderr}"[-3000:])
        return done.stdout
