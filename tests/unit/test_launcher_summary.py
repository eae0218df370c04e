"""What is printed at the end works as printed."""

import json
import shlex
from pathlib import Path

import pytest

from launcher import health, summary
from launcher.address import Address
from launcher.errors import LaunchError
from launcher.summary import DemoObjects

ADDRESS = Address(host="127.0.0.1", port=8000)


def prepared(password: str | None = None) -> DemoObjects:
    return DemoObjects(team="team_1", key="sk-abc", admin_user="admin", admin_password=password)


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    words = shlex.split(summary.curl(address=ADDRESS, key="sk-abc", model="demo"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/responses"]
    assert "Authorization: Bearer sk-abc" in words
    assert json.loads(words[-1]) == {"model": "demo", "input": "Hello"}


def test_a_new_password_is_shown_and_kept_for_the_owner(tmp_path: Path) -> None:
    assert summary.password_hint(prepared=prepared("p4ss"), state_dir=tmp_path) == "password p4ss"
    kept = tmp_path / "admin-password"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("p4ss\n", 0o600)


def test_a_known_password_is_not_shown_but_where_it_lies(tmp_path: Path) -> None:
    summary.password_hint(prepared=prepared("p4ss"), state_dir=tmp_path)
    hint = summary.password_hint(prepared=prepared(), state_dir=tmp_path)
    assert str(tmp_path / "admin-password") in hint
    assert "p4ss" not in hint


def test_a_password_that_we_never_knew_can_be_changed(tmp_path: Path) -> None:
    assert "changepassword admin" in summary.password_hint(prepared=prepared(), state_dir=tmp_path)


@pytest.mark.parametrize("text", ["", "done", "[]", '{"team": "team_1"}'])
def test_an_answer_that_is_not_the_object_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=r"^`prepare_demo` did not return"):
        summary.parse(text)


@pytest.mark.parametrize(
    ("hosts", "header"),
    [("", None), ("*", None), ("api.example.com,10.0.0.1", "api.example.com"), (".example.com", "example.com")],
)
def test_web_is_asked_by_a_name_that_it_answers_to(hosts: str, header: str | None) -> None:
    assert health.host_header({"ALLOWED_HOSTS": hosts}) == header
