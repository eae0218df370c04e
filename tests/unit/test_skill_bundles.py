"""Bundles of skills: valid directories and archives, and each rule that a defective one breaks."""

import os
import stat
import zipfile
from io import BytesIO

import pytest

from core.errors import InvalidValue
from skills import bundle as bundles
from skills import reader
from skills.bundle import Bundle, BundleFile, read_archive, read_files
from tests.support.skills import skill_files, unzipped, zipped


def read(files: dict[str, bytes]) -> Bundle:
    return read_files((BundleFile(path=path, content=content) for path, content in files.items()), param="files")


def front_matter(text: str) -> dict[str, bytes]:
    return {"a/SKILL.md": text.encode()}


def test_a_directory_becomes_an_archive_of_the_same_files() -> None:
    files = skill_files(**{"lib/add.py": "print(1 + 1)"})
    bundle = read(files)
    assert (bundle.name, bundle.description, bundle.files) == ("sums", "Add numbers.", 2)
    assert unzipped(bundle.archive) == files
    assert read(dict(reversed(files.items()))).sha256 == bundle.sha256


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("---\nname: a\ndescription: 'It''s: quoted'\n---\n", "It's: quoted"),
        ("---\r\nname: a\r\ndescription: >\r\n  folded\r\n  text\r\n---\r\nmore", "folded text"),
        ("\ufeff---\nname: a\ndescription: plain\nlicense: MIT\nmetadata:\n  owner: us\n---\n---\n", "plain"),
    ],
)
def test_front_matter_is_yaml(text: str, description: str) -> None:
    assert read(front_matter(text)).description == description


def test_an_archive_keeps_executable_files_and_loses_clutter() -> None:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        script = zipfile.ZipInfo("sums/run.sh")
        script.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(script, "#!/bin/sh")
        archive.writestr("sums/", "")
        for path in ("sums/.DS_Store", "__MACOSX/sums/._SKILL.md"):
            archive.writestr(path, "x")
        for path, content in skill_files().items():
            archive.writestr(path, content)
    bundle = read_archive(packed.getvalue(), param="files")
    with zipfile.ZipFile(BytesIO(bundle.archive)) as archive:
        modes = {entry.filename: stat.S_IMODE(entry.external_attr >> 16) for entry in archive.infolist()}
    assert modes == {"sums/SKILL.md": 0o644, "sums/run.sh": 0o755}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "single top-level folder"),
        ({"SKILL.md": b""}, "single top-level folder"),
        ({**skill_files(), "other/a.txt": b""}, "single top-level folder"),
        ({"a/read.md": b""}, "exactly one SKILL.md"),
        ({**skill_files(), "sums/skill.md": b""}, "exactly one SKILL.md"),
        ({"a/b/SKILL.md": b""}, "exactly one SKILL.md"),
        ({**skill_files(), "sums/../../evil": b""}, "not a valid relative path"),
        ({**skill_files(), "/etc/passwd": b""}, "not a valid relative path"),
        ({**skill_files(), "sums\\evil": b""}, "not a valid relative path"),
        ({**skill_files(), "sums/\x00": b""}, "not a valid relative path"),
        ({**skill_files(), f"sums/{'x' * 300}": b""}, "not a valid relative path"),
        ({**skill_files(), "sums/lib": b"", "sums/lib/a.py": b""}, "both a file and a folder"),
        ({f"sums/{number}": b"" for number in range(501)}, "at most 500 files"),
        (front_matter("name: a"), "front matter"),
        (front_matter("---\nname: [\n---\n"), "not valid YAML"),
        (front_matter("---\n- a\n---\n"), "'name'"),
        (front_matter("---\nname: Not_Valid\ndescription: x\n---\n"), "'name'"),
        (front_matter("---\nname: a--b\ndescription: x\n---\n"), "'name'"),
        (front_matter(f"---\nname: {'a' * 65}\ndescription: x\n---\n"), "'name'"),
        (front_matter("---\nname: a\n---\n"), "'description'"),
        (front_matter(f"---\nname: a\ndescription: {'x' * 1025}\n---\n"), "'description'"),
        (front_matter(f"---\nname: {'[' * 5000}\n---\n"), "not valid YAML"),
    ],
)
def test_a_defect_is_named(files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as defect:
        read(files)
    assert defect.value.param == "files"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", zipped(skill_files())[:-30], b"text"])
def test_a_damaged_archive_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_archive(content, param="files")


def test_a_symbolic_link_in_an_archive_is_refused() -> None:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        link = zipfile.ZipInfo("sums/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/proc/1/mem")
    with pytest.raises(InvalidValue, match="not a regular file"):
        read_archive(packed.getvalue(), param="files")


@pytest.mark.slow
def test_an_archive_that_unpacks_to_more_than_allowed_is_refused() -> None:
    large = {f"sums/{number}": bytes(bundles.MAX_FILE_BYTES) for number in range(4)}
    with pytest.raises(InvalidValue, match="64 MiB together"):
        read_archive(zipped({**skill_files(), **large}), param="files")
    with pytest.raises(InvalidValue, match="'sums/0' is larger than 25 MiB"):
        read_archive(zipped({**skill_files(), "sums/0": bytes(bundles.MAX_FILE_BYTES + 1)}), param="files")


@pytest.mark.slow
def test_an_archive_may_have_exactly_the_largest_size() -> None:
    packed = BytesIO()
    # The bytes are stored as they are, and the comment at the end of the file fills the rest.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for path, content in skill_files().items():
            archive.writestr(path, content)
        archive.writestr("sums/a", bytes(bundles.MAX_FILE_BYTES))
        archive.writestr("sums/b", bytes(bundles.MAX_FILE_BYTES - 32 * 1024))
    missing = bundles.MAX_ARCHIVE_BYTES - len(packed.getvalue())
    with zipfile.ZipFile(packed, "a") as archive:
        archive.comment = bytes(missing)
    assert len(packed.getvalue()) == bundles.MAX_ARCHIVE_BYTES
    assert read_archive(packed.getvalue(), param="files").files == len(skill_files()) + 2
    with pytest.raises(InvalidValue, match="the zip file is larger than 50 MiB"):
        read_archive(packed.getvalue() + b"\0", param="files")


def test_an_archive_with_too_many_entries_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidValue, match="at most 500 files"):
        read_archive(zipped({f"sums/{number}": b"" for number in range(6000)}), param="files")


# -- in the pool of computations ---------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
async def test_the_largest_skill_is_read_within_the_limits_of_the_pool() -> None:
    # Random bytes, which no archive makes smaller.
    files = skill_files() | {f"sums/{number}.bin": os.urandom(20 * 1024 * 1024) for number in range(3)}
    listed = [BundleFile(path=path, content=content) for path, content in files.items()]
    assert await reader.read_files(listed, param="files") == read(files)


async def test_an_archive_read_in_the_pool_is_the_same() -> None:
    archive = zipped(skill_files())
    assert await reader.read_archive(archive, param="files") == read_archive(archive, param="files")


async def test_a_defect_found_in_the_pool_is_reported() -> None:
    with pytest.raises(InvalidValue, match="zip file cannot be read") as raised:
        await reader.read_archive(b"PK\x03\x04 damaged", param="skills[0].source.data")
    assert raised.value.param == "skills[0].source.data"
