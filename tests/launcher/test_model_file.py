"""Model files: valid ones, and the server that serves them."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.errors import LaunchError
from launcher.local_models import model_file
from launcher.local_models.model_file import ModelFile, ModelFileServer

needs_no_llama = pytest.mark.skipif(find_spec("xllamacpp") is not None, reason="xllamacpp is installed here")


def written(path: Path, content: bytes = b"GGUF and more") -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M"),
        ("big-00001-of-00003.gguf", "big"),
        ("a,b.gguf", "a-b"),
        ("sha256-0123", "sha256-0123"),
    ],
)
def test_a_model_is_named_after_its_file(tmp_path: Path, file: str, name: str) -> None:
    assert ModelFile.at(written(tmp_path / file)).name == name


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04"])
def test_other_file_formats_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(LaunchError, match=r"is not a model in the format GGUF"):
        ModelFile.at(written(tmp_path / "model.gguf", content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=rf"^There is no model file {tmp_path}/model.gguf\.$"):
        ModelFile.at(tmp_path / "model.gguf")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot be read: Is a directory\.$"):
        ModelFile.at(tmp_path)


@needs_no_llama
def test_without_llama_cpp_the_command_that_installs_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"run `python3 manage.py install --llama`, or set LLAMA_SERVER"):
        model_file.program({"PATH": str(tmp_path)})


@needs_no_llama
def test_the_server_of_the_system_is_used_if_there_is_one(tmp_path: Path) -> None:
    system = written(tmp_path / "llama-server")
    system.chmod(0o755)
    assert model_file.program({"PATH": str(tmp_path)}) == [str(system)]


def test_a_chosen_server_takes_precedence(tmp_path: Path) -> None:
    assert model_file.program({"LLAMA_SERVER": sys.executable, "PATH": str(tmp_path)}) == [sys.executable]


@pytest.mark.parametrize("name", ["missing", "text"])
def test_a_chosen_server_that_is_not_a_program_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path / "text")
    with pytest.raises(LaunchError, match=r"^LLAMA_SERVER must be the path of a program"):
        model_file.program({"LLAMA_SERVER": str(tmp_path / name)})


def test_the_server_receives_no_platform_secret_and_no_key_as_argument(tmp_path: Path) -> None:
    server = ModelFileServer(file=ModelFile.at(written(tmp_path / "m.gguf")), port=17001, key="sk-own")
    given = {
        "LLAMA_SERVER": sys.executable,
        "SECRET_KEY": "hidden",
        "DATABASE_URL": "hidden",
        "LLAMA_ARG_CTX_SIZE": "4096",
        "PATH": "/bin",
    }
    command = server.command(root=tmp_path, log=tmp_path / "log", environment=given)
    assert "hidden" not in command.environment.values()
    assert (command.environment["LLAMA_ARG_CTX_SIZE"], command.environment["LLAMA_API_KEY"]) == ("4096", "sk-own")
    assert "sk-own" not in " ".join(command.argv)
    assert command.argv[-2:] == ("--alias", "m")


def test_one_cpu_core_is_left_to_the_platform() -> None:
    cores = os.cpu_count() or 1
    assert 1 <= model_file.threads() <= max(1, cores - 1)
