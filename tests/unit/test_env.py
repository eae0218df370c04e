"""Readers of environment variables: strict, with one sentence per error."""

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from server import env

NAME = "PLATFORM_TEST_VALUE"


@pytest.mark.parametrize(("value", "read"), [("x", "x"), ("  x \n", "x"), ("", "")])
def test_text_is_trimmed(monkeypatch: pytest.MonkeyPatch, value: str, read: str) -> None:
    monkeypatch.setenv(NAME, value)
    assert env.text(NAME, "default") == read


def test_an_unset_text_is_the_default() -> None:
    assert env.text(NAME, "default") == "default"


def test_a_file_replaces_an_unset_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from the file\n")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))
    assert env.text(NAME) == "from the file"
    monkeypatch.setenv(NAME, "from the variable")
    assert env.text(NAME) == "from the variable"


def test_a_missing_required_variable_is_reported_with_its_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "  ")
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} is not set: because"):
        env.required(NAME, hint="because")


@pytest.mark.parametrize(("value", "read"), [("5", [5]), (" 0, 1,2 ", [0, 1, 2]), ("", [7, 8])])
def test_whole_numbers_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, value: str, read: list[int]) -> None:
    monkeypatch.setenv(NAME, value)
    assert env.integers(NAME, default=(7, 8)) == read


@pytest.mark.parametrize("value", ["x", "1,", "1 2", "3,-1", "1.5"])
def test_an_invalid_list_of_numbers_is_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be integers of at least 0"):
        env.integers(NAME, default=(7,))


@pytest.mark.parametrize(
    ("value", "read"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False), ("", True)]
)
def test_flags_are_one_of_four_words(monkeypatch: pytest.MonkeyPatch, value: str, read: bool) -> None:
    monkeypatch.setenv(NAME, value)
    assert env.flag(NAME, default=True) is read


@pytest.mark.parametrize("value", ["yes", "no", "off", "2", "tru"])
def test_any_other_word_for_a_flag_is_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be 1, true, 0 or false"):
        env.flag(NAME, default=False)


@pytest.mark.parametrize(("value", "read"), [("", 7), ("3", 3), ("12", 12)])
def test_integers_are_read(monkeypatch: pytest.MonkeyPatch, value: str, read: int) -> None:
    monkeypatch.setenv(NAME, value)
    assert env.integer(NAME, default=7, minimum=3) == read


@pytest.mark.parametrize("value", ["2", "-1", "3.5", "many"])
def test_an_integer_below_its_minimum_or_a_non_integer_is_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be an integer of at least 3, not '{value}'"):
        env.integer(NAME, default=7, minimum=3)


@pytest.mark.parametrize(("value", "read"), [("", ["d"]), (" , ", ["d"]), ("a", ["a"]), (" a, b ,,c", ["a", "b", "c"])])
def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, value: str, read: list[str]) -> None:
    monkeypatch.setenv(NAME, value)
    assert env.names(NAME, default=("d",)) == read


def test_a_database_url_is_parsed() -> None:
    assert env.postgres("postgresql://us%40er:p%2Fw@db.example:6543/my%20db", name=NAME) == {
        "NAME": "my db",
        "USER": "us@er",
        "PASSWORD": "p/w",
        "HOST": "db.example",
        "PORT": 6543,
        "OPTIONS": {},
    }


def test_one_of_several_hosts_is_selected_by_accepting_writes() -> None:
    read = env.postgres("postgresql://us%40er:p%2Fw@db1:5433,[::1],db3:5434/db", name=NAME)
    assert (read["USER"], read["PASSWORD"]) == ("us@er", "p/w")
    assert (read["HOST"], read["PORT"]) == ("db1,::1,db3", "5433,5432,5434")
    assert read["OPTIONS"] == {"target_session_attrs": "read-write"}


def test_a_single_host_may_be_required_to_accept_writes() -> None:
    read = env.postgres("postgresql://db/platform?target_session_attrs=read-write", name=NAME)
    assert (read["HOST"], read["PORT"]) == ("db", 5432)
    assert read["OPTIONS"] == {"target_session_attrs": "read-write"}


def test_parts_of_a_database_url_have_defaults() -> None:
    read = env.postgres("postgres://localhost/db", name=NAME)
    assert (read["USER"], read["PASSWORD"], read["PORT"]) == ("", "", 5432)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://localhost/db",
        "postgresql://localhost",
        "postgresql://localhost/",
        "db",
        "postgresql://localhost:many/db",
        "postgresql://localhost:70000/db",
        "postgresql://localhost,/db",
        "postgresql://localhost,localhost:many/db",
        "postgresql://localhost/db?sslmode=require",
    ],
)
def test_an_invalid_or_repeated_database_url_is_rejected(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must look like postgresql://"):
        env.postgres(url, name=NAME)


@pytest.mark.parametrize(
    ("value", "read"),
    [("", []), ("*", ["*"]), ("https://a.test, http://b.test:3000", ["https://a.test", "http://b.test:3000"])],
)
def test_origins_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, value: str, read: list[str]) -> None:
    monkeypatch.setenv(NAME, value)
    assert env.origins(NAME) == read


@pytest.mark.parametrize("value", ["app.test", "https://a.test/", "https://a.test/path", "*,https://a.test", "null"])
def test_invalid_origins_are_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be \\* or origins"):
        env.origins(NAME)


def mail_server(url: str = "", **parts: Any) -> dict[str, Any]:
    """Return the settings of a mail server without their common prefix."""
    given = {"host": "", "port": 0, "user": "", "password": "", "security": "starttls", **parts}
    return {name.removeprefix("EMAIL_"): value for name, value in env.mail_server(url, **given).items() if value}


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("smtp://localhost", {"HOST": "localhost", "PORT": 25}),
        ("smtp+starttls://mail.example.com", {"HOST": "mail.example.com", "PORT": 587, "USE_TLS": True}),
        (
            "smtps://me%40example.com:p%2Fw@mail.example.com:4465",
            {
                "HOST": "mail.example.com",
                "PORT": 4465,
                "HOST_USER": "me@example.com",
                "HOST_PASSWORD": "p/w",
                "USE_SSL": True,
            },
        ),
    ],
)
def test_a_mail_server_is_read_from_a_url(url: str, read: dict[str, Any]) -> None:
    assert mail_server(url, host="ignored") == read


def test_a_mail_server_is_read_from_parts() -> None:
    read = {"HOST": "mail", "PORT": 465, "HOST_USER": "me", "HOST_PASSWORD": "pw", "USE_SSL": True}
    assert mail_server(host="mail", user="me", password="pw", security="tls") == read
    assert mail_server(host="mail") == {"HOST": "mail", "PORT": 587, "USE_TLS": True}
    assert "HOST" not in mail_server()


@pytest.mark.parametrize("url", ["mail.example.com", "http://mail", "smtps://", "smtp://mail:x", "smtp://mail/path"])
def test_an_invalid_url_of_a_mail_server_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="EMAIL_URL must look like smtps://"):
        mail_server(url)


def test_an_unknown_security_mode_of_a_mail_server_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="SMTP_SECURITY must be none, starttls, tls, not 'ssl'"):
        mail_server(host="mail", security="ssl")


def test_a_port_is_at_most_65535(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "65535")
    assert env.port(NAME) == 65535
    monkeypatch.setenv(NAME, "65536")
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be a port of at most 65535, not '65536'"):
        env.port(NAME)


def test_a_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "missing"))
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}_FILE names a file that cannot be read.*missing"):
        env.text(NAME)


@pytest.mark.parametrize(
    ("hosts", "is_secure", "expected"),
    [
        (["localhost", "127.0.0.1", "[::1]"], False, "http://localhost:8000"),
        (["ai.example.com", "127.0.0.1"], True, "https://ai.example.com"),
        (["127.0.0.1", "ai.example.com"], False, "http://ai.example.com:8000"),
        (["*", ".example.com"], True, "http://localhost:8000"),
        ([".example.com", "10.0.0.7"], False, "http://10.0.0.7:8000"),
    ],
)
def test_links_have_the_first_name_of_the_platform_by_default(hosts: list[str], is_secure: bool, expected: str) -> None:
    assert env.public_url(hosts, port=8000, is_secure=is_secure) == expected
