"""Summary after the start: commands and credentials work as printed."""

import json
import shlex
from pathlib import Path

import pytest

from launcher import address, up
from launcher.address import Address
from launcher.errors import LaunchError
from launcher.up import DemoObjects

ADDRESS = Address(host="127.0.0.1", port=8000)


def prepared(password: str | None = None) -> DemoObjects:
    return DemoObjects(team="team_1", key="sk-abc", admin_user="admin", admin_password=password)


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    words = shlex.split(up.curl(address=ADDRESS, key="sk-abc", model="demo"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/responses"]
    assert "Authorization: Bearer sk-abc" in words
    assert json.loads(words[-1]) == {"model": "demo", "input": "Hello"}


def test_a_new_password_is_shown_and_stored_for_the_owner(tmp_path: Path) -> None:
    assert prepared("p4ss").password_hint(state_dir=tmp_path) == "password p4ss"
    kept = tmp_path / "admin-password"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("p4ss\n", 0o600)


def test_a_known_password_is_not_shown_but_its_file_is_named(tmp_path: Path) -> None:
    prepared("p4ss").password_hint(state_dir=tmp_path)
    hint = prepared().password_hint(state_dir=tmp_path)
    assert str(tmp_path / "admin-password") in hint
    assert "p4ss" not in hint


def test_an_unknown_password_comes_with_the_command_to_change_it(tmp_path: Path) -> None:
    assert "changepassword admin" in prepared().password_hint(state_dir=tmp_path)


@pytest.mark.parametrize("text", ["", "done", "[]", '{"team": "team_1"}'])
def test_an_unexpected_answer_is_rejected(text: str) -> None:
    with pytest.raises(LaunchError, match=r"^`prepare_demo` did not return"):
        DemoObjects.parse(text)


@pytest.mark.parametrize(
    ("hosts", "header"),
    [("", None), ("*", None), ("api.example.com,10.0.0.1", "api.example.com"), (".example.com", "example.com")],
)
def test_the_web_server_is_called_with_an_allowed_host_name(hosts: str, header: str | None) -> None:
    assert address.host_header({"ALLOWED_HOSTS": hosts}) == header
