"""Secrets are created once, stored privately, and never silently replaced."""

import stat
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from launcher import state
from launcher.errors import LaunchError


def load(state_dir: Path, **environment: str) -> dict[str, str]:
    return state.load_secrets(state_dir=state_dir, environment=environment)


def test_the_next_start_uses_the_same_secrets(tmp_path: Path) -> None:
    assert load(tmp_path) == load(tmp_path)


def test_two_state_directories_share_no_secret(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert set(load(tmp_path / "a").values()).isdisjoint(load(tmp_path / "b").values())


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    load(tmp_path)
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600


def test_environment_variables_take_precedence_and_are_not_stored(tmp_path: Path) -> None:
    assert load(tmp_path, SECRET_KEY="mine")["SECRET_KEY"] == "mine"
    assert load(tmp_path)["SECRET_KEY"] != "mine"


def test_the_encryption_key_is_valid_for_the_platform(tmp_path: Path) -> None:
    box = Fernet(load(tmp_path)["ENCRYPTION_KEYS"])
    assert box.decrypt(box.encrypt(b"secret")) == b"secret"


def test_a_secret_of_a_newer_version_is_added_and_the_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text('{"SECRET_KEY": "old"}')
    assert load(tmp_path)["SECRET_KEY"] == "old"
    assert load(tmp_path)["API_KEY_PEPPER"] == load(tmp_path)["API_KEY_PEPPER"]


def test_a_damaged_file_stops_the_start_and_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(LaunchError, match="it contains the encryption keys of the stored data"):
        load(tmp_path)
    assert (tmp_path / "secrets.json").read_text() == "{"
