"""Text extraction from documents, for models that cannot read files and for vector stores.

Plain text is decoded here. Everything that needs a parser is read by `document_reader` in a process with limits.
"""

import codecs
import subprocess
import sys
import tempfile
from pathlib import Path

from conversations.files import document_reader
from kernel.errors import FileTooLarge, InvalidFile, UnsupportedFile

_READER = Path(document_reader.__file__)
# Longer than the reader's CPU limit: the process may have to wait for a processor.
_WALL_SECONDS = 30.0
_SUPPORTED = "plain text, HTML, PDF, Word (.docx) and PowerPoint (.pptx)"
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def extract_text(content: bytes, *, filename: str = "", content_type: str = "") -> str:
    """Return the text of a document. Blocks for up to 30 seconds, so never call it on the event loop.

    Raises `UnsupportedFile`, `InvalidFile` or `FileTooLarge`.
    """
    # The content decides where it can: file names and media types are only what the client claims. PDF readers accept
    # the marker anywhere in the first kilobyte.
    beginning = content[:1024].lstrip().lower()
    claims_html = filename.lower().endswith((".html", ".htm")) or content_type.lower().startswith("text/html")
    if b"%PDF-" in content[:1024]:
        text = _parsed("pdf", content)
    elif content.startswith(b"PK\x03\x04"):
        text = _parsed("office", content)
    elif claims_html or beginning.startswith((b"<!doctype html", b"<html")):
        text = _parsed("html", content)
    else:
        text = _decoded(content)
    if not text.strip():
        raise InvalidFile("The file contains no text.")
    # PostgreSQL cannot store NUL.
    return text.replace("\x00", "")


def _decoded(content: bytes) -> str:
    encoding = next((name for bom, name in _BOMS.items() if content.startswith(bom)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnsupportedFile(f"The file is not UTF-8 text. Supported formats: {_SUPPORTED}.") from error
    # Only binary formats contain NUL.
    if "\x00" in text:
        raise _unsupported()
    if len(text) > document_reader.MAX_TEXT:
        raise _too_long()
    return text


def _parsed(kind: str, content: bytes) -> str:
    # Files and not pipes: RLIMIT_FSIZE bounds what the reader writes only for files.
    with tempfile.TemporaryFile() as document, tempfile.TemporaryFile() as output:
        document.write(content)
        document.seek(0)
        try:
            # -I keeps the platform's modules off the import path. The empty environment contains no secrets.
            done = subprocess.run(
                [sys.executable, "-I", str(_READER), kind],
                stdin=document,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=_WALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _too_costly() from error
        match done.returncode:
            case 0:
                output.seek(0)
                return output.read().decode(errors="replace")
            case document_reader.LOCKED:
                raise InvalidFile("The file could not be read: it is protected by a password.")
            case document_reader.TOO_LONG:
                raise _too_long()
            case document_reader.UNKNOWN:
                raise _unsupported()
            case document_reader.UNREADABLE:
                raise InvalidFile("The file could not be read: it is damaged or not of the type it claims to be.")
        # Any other code: the kernel killed the process at one of its limits.
        raise _too_costly()


def _unsupported() -> UnsupportedFile:
    return UnsupportedFile(f"The file type is not supported. Supported formats: {_SUPPORTED}.")


def _too_long() -> FileTooLarge:
    return FileTooLarge(f"The file contains too much text: the limit is {document_reader.MAX_TEXT} characters.")


def _too_costly() -> InvalidFile:
    return InvalidFile("The file could not be read: reading it takes too much time or memory.")
