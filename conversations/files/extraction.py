"""The words in a document: for models that cannot read files themselves, and for whatever searches in them.

Text is decoded here. Everything that needs a parser is read by `document_reader`, in a process with limits.
"""

import codecs
import subprocess
import sys
import tempfile
from pathlib import Path

from conversations.files import document_reader
from kernel.errors import FileTooLarge, InvalidFile, UnsupportedFile

_READER = Path(document_reader.__file__)
_WALL_SECONDS = 30.0
_SUPPORTED = "text in any form, HTML, PDF, Word (.docx) and PowerPoint (.pptx)"
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def extract_text(content: bytes, *, filename: str = "", content_type: str = "") -> str:
    """The words of a document; blocks for up to half a minute, so never call it in an event loop.

    Raises `UnsupportedFile`, `InvalidFile` or `FileTooLarge`.
    """
    kind = _kind(content, filename.lower(), content_type.lower())
    text = _decoded(content) if kind == "text" else _read_apart(kind, content)
    if not text.strip():
        raise InvalidFile("The file holds no text.")
    return text.replace("\x00", "")


def _kind(content: bytes, filename: str, content_type: str) -> str:
    """What a document is, by its content wherever that says so: names and types are what a caller claims."""
    if b"%PDF-" in content[:1024]:
        return "pdf"
    if content.startswith(b"PK\x03\x04"):
        return "office"
    beginning = content[:1024].lstrip().lower()
    if filename.endswith((".html", ".htm")) or content_type.startswith("text/html") or beginning.startswith(_HTML):
        return "html"
    return "text"


_HTML = (b"<!doctype html", b"<html")


def _decoded(content: bytes) -> str:
    encoding = next((name for bom, name in _BOMS.items() if content.startswith(bom)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnsupportedFile(f"The file is not text in UTF-8. What can be read: {_SUPPORTED}.") from error
    if "\x00" in text:
        raise _of_another_kind()
    if len(text) > document_reader.MAX_TEXT:
        raise _too_long()
    return text


def _read_apart(kind: str, content: bytes) -> str:
    """Files, not pipes: the kernel bounds what the reader writes."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as taken:
        given.write(content)
        given.seek(0)
        try:
            # -I: nothing of ours is on its path. The empty environment holds no secret.
            done = subprocess.run(
                [sys.executable, "-I", str(_READER), kind],
                stdin=given,
                stdout=taken,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=_WALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _too_much() from error
        match done.returncode:
            case 0:
                taken.seek(0)
                return taken.read().decode(errors="replace")
            case document_reader.LOCKED:
                raise InvalidFile("The file could not be read: it is protected with a password.")
            case document_reader.TOO_LONG:
                raise _too_long()
            case document_reader.UNKNOWN:
                raise _of_another_kind()
            case document_reader.UNREADABLE:
                raise InvalidFile("The file could not be read: it is damaged, or not what its beginning says.")
        raise _too_much()


def _of_another_kind() -> UnsupportedFile:
    return UnsupportedFile(f"The file is of a kind that cannot be read here. What can be read: {_SUPPORTED}.")


def _too_long() -> FileTooLarge:
    return FileTooLarge(f"The file holds too much text: the limit is {document_reader.MAX_TEXT} characters.")


def _too_much() -> InvalidFile:
    return InvalidFile("The file could not be read: it takes too much time or memory.")
