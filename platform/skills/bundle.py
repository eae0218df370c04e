"""Bundles: the files of a skill, read from an uploaded directory or a zip archive, and checked.

The rules follow OpenAI and the Agent Skills format: one top-level folder with exactly one SKILL.md, whose
front matter names and describes the skill.
"""

import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO

import yaml
from typing_extensions import override

from core.errors import InvalidValue

MAX_FILES = 500
MAX_ARCHIVE_BYTES = 50 * 1024 * 1024
MAX_FILE_BYTES = 25 * 1024 * 1024
# All files together, unpacked: they are held in memory while they are checked, and in the memory of containers.
MAX_TOTAL_BYTES = 64 * 1024 * 1024
MAX_NAME = 64
MAX_DESCRIPTION = 1024
NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
_MANIFEST = "skill.md"
_MAX_PATH = 255
_MAX_FRONT_MATTER = 16 * 1024
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_ZIP_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_ENTRY = b"PK\x01\x02"
# More than MAX_FILES, because folders and ignored files such as `.DS_Store` are entries too.
_MAX_ENTRIES = 10 * MAX_FILES
# A fixed time, so that the same files always become the same archive.
_TIME = (1980, 1, 1, 0, 0, 0)
# Added by operating systems, not by the author of a skill.
_CLUTTER = re.compile(r"(^|/)(__MACOSX/|\.DS_Store$|Thumbs\.db$)")


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects aliases: a few lines with aliases and merge keys can expand to gigabytes."""

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A valid skill. `archive` is a zip in which all files are below one folder."""

    name: str
    description: str
    archive: bytes = field(repr=False)
    files: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFile:
    """A file of a bundle. `path` starts with the top-level folder."""

    path: str
    content: bytes = field(repr=False)
    is_executable: bool = False


def is_zip(content: bytes) -> bool:
    """Return whether a file is a zip archive."""
    return content.startswith(_ZIP_BEGINNINGS)


def read_archive(content: bytes, *, param: str) -> Bundle:
    """Read a bundle from a zip archive. Raises InvalidValue."""
    if len(content) > MAX_ARCHIVE_BYTES:
        raise _invalid(param, f"the zip file is larger than {MAX_ARCHIVE_BYTES // 1024 // 1024} MiB")
    # zipfile makes an object for every entry, and an archive of this size can list a million of them.
    if content.count(_ZIP_ENTRY) > _MAX_ENTRIES:
        raise _invalid(param, f"a skill has at most {MAX_FILES} files")
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            return read_files(_unpack(archive, param), param=param)
    # zipfile raises all of these for damaged or unsupported archives.
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error) as error:
        raise _invalid(param, "the zip file cannot be read") from error


def _unpack(archive: zipfile.ZipFile, param: str) -> Iterator[BundleFile]:
    for entry in archive.infolist():
        if entry.is_dir() or _CLUTTER.search(entry.filename):
            continue
        mode = entry.external_attr >> 16
        if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            # Other methods take many times longer for the same number of bytes.
            raise _invalid(param, f"'{entry.filename}' is neither stored nor compressed with deflate")
        if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
            raise _invalid(param, f"'{entry.filename}' is not a regular file")
        with archive.open(entry) as opened:
            # One byte more than allowed: the size that an archive states may be wrong.
            yield BundleFile(
                path=entry.filename, content=opened.read(MAX_FILE_BYTES + 1), is_executable=bool(mode & stat.S_IXUSR)
            )


def read_files(files: Iterable[BundleFile], *, param: str) -> Bundle:
    """Read a bundle from its files. Raises InvalidValue."""
    found: dict[str, BundleFile] = {}
    size = 0
    for file in files:
        path = _checked_path(file.path, param)
        size += len(file.content)
        if len(file.content) > MAX_FILE_BYTES:
            raise _invalid(param, f"'{path}' is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB")
        if size > MAX_TOTAL_BYTES:
            raise _invalid(param, f"the files have more than {MAX_TOTAL_BYTES // 1024 // 1024} MiB together")
        if path in found:
            raise _invalid(param, f"'{path}' occurs more than once")
        found[path] = file
        if len(found) > MAX_FILES:
            raise _invalid(param, f"a skill has at most {MAX_FILES} files")
    manifest = _manifest(found, param)
    name, description = _front_matter(manifest.content, param)
    archive = _pack(found)
    return Bundle(
        name=name,
        description=description,
        archive=archive,
        files=len(found),
        sha256=hashlib.sha256(archive).hexdigest(),
    )


def _checked_path(path: str, param: str) -> str:
    parts = path.split("/")
    is_plain = path.isprintable() and "\\" not in path and not any(part in {"", ".", ".."} for part in parts)
    if not is_plain or len(path.encode(errors="replace")) > _MAX_PATH:
        raise _invalid(param, f"'{path[:_MAX_PATH]}' is not a valid relative path")
    return path


def _manifest(files: Mapping[str, BundleFile], param: str) -> BundleFile:
    folders = {path.partition("/")[0] for path in files}
    if len(folders) != 1 or any("/" not in path for path in files):
        raise _invalid(param, "all files must be in a single top-level folder")
    directories = {path.rsplit("/", depth)[0] for path in files for depth in range(1, path.count("/") + 1)}
    if clash := directories & files.keys():
        raise _invalid(param, f"'{min(clash)}' is both a file and a folder")
    manifests = [path for path in files if path.rpartition("/")[2].lower() == _MANIFEST]
    if len(manifests) != 1 or manifests[0].count("/") != 1:
        raise _invalid(param, "expected exactly one SKILL.md file, in the top-level folder")
    return files[manifests[0]]


def _front_matter(manifest: bytes, param: str) -> tuple[str, str]:
    found = _FRONT_MATTER.match(manifest[:_MAX_FRONT_MATTER].decode(errors="replace"))
    if found is None:
        raise _invalid(param, "SKILL.md must begin with front matter between two lines '---'")
    try:
        values = yaml.load(found[1], _Loader)  # noqa: S506 - a safe loader
    # Deeply nested lists exhaust the parser's stack, and long numbers to the base 60 are too large for a float.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise _invalid(param, "the front matter of SKILL.md is not valid YAML") from error
    values = values if isinstance(values, dict) else {}
    name, description = values.get("name"), values.get("description")
    if not isinstance(name, str) or len(name) > MAX_NAME or re.fullmatch(NAME, name) is None:
        raise _invalid(
            param,
            f"'name' in SKILL.md must have at most {MAX_NAME} lowercase letters, digits and single hyphens",
        )
    # PostgreSQL stores no NUL.
    description = description.strip().replace("\x00", "") if isinstance(description, str) else ""
    if not 1 <= len(description) <= MAX_DESCRIPTION:
        raise _invalid(param, f"'description' in SKILL.md must have 1 to {MAX_DESCRIPTION} characters")
    return name, description


def _pack(files: Mapping[str, BundleFile]) -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, _TIME)
            entry.external_attr = (stat.S_IFREG | (0o755 if files[path].is_executable else 0o644)) << 16
            archive.writestr(entry, files[path].content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _invalid(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid '{param}': {reason}.", param=param)


# -- in a process of the pool ------------------------------------------------------------------------------------------


def compute_archive(content: bytes, param: str) -> bytes:
    """Read a bundle from an archive. Return its properties or the error as a line of JSON, followed by its archive."""
    return _result(lambda: read_archive(content, param=param))


def compute_files(files: list[tuple[str, bytes, bool]], param: str) -> bytes:
    """Read a bundle from files. Return its properties or the error as a line of JSON, followed by its archive."""
    listed = (BundleFile(path=path, content=content, is_executable=flag) for path, content, flag in files)
    return _result(lambda: read_files(listed, param=param))


def _result(read: Callable[[], Bundle]) -> bytes:
    try:
        bundle = read()
    except InvalidValue as error:
        return json.dumps({"message": error.message}).encode()
    values = {
        "name": bundle.name,
        "description": bundle.description,
        "files": bundle.files,
        "sha256": bundle.sha256,
    }
    return json.dumps(values).encode() + b"\n" + bundle.archive
