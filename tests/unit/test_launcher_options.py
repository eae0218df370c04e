"""Options of commands, which may not be abbreviated."""

import pytest

from launcher import commands
from launcher.django_commands import CommandLine


@pytest.mark.parametrize(
    "arguments",
    [
        ["add_upstream", "--name", "x", "--base-url", "http://127.0.0.1:9/v1", "--api", "responses"],
        ["createsuperuser", "--user", "ada"],
    ],
)
def test_abbreviated_options_of_django_commands_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        CommandLine(["manage.py", *arguments]).execute()
    assert exit_.value.code == 2
    assert f"unrecognized arguments: {' '.join(arguments[-2:])}" in capsys.readouterr().err


def test_abbreviated_options_of_the_launcher_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.up_parser().parse_args(["--conn"])
    assert "unrecognized arguments: --conn" in capsys.readouterr().err
