"""Text extraction from documents, for models that cannot read files and for vector stores.

Plain text is decoded here. Formats that need a parser are read by `document_reader` in the computation pool.
"""

import asyncio
import codecs

from conversations.files import document_reader
from core.compute.pool import Computation, ComputationFailed, TooCostly, compute
from core.errors import BadRequest, FileTooLarge, InvalidFile, UnsupportedFile

READING = Computation(
    function=f"{document_reader.__name__}:read",
    imports=("pypdf", "xml.etree.ElementTree", "html.parser", "zipfile"),
    cpu_seconds=20,
    # The process may have to wait for a processor.
    seconds=30.0,
    memory=1024 * 1024 * 1024,
    # A character takes at most four bytes in UTF-8.
    result=4 * document_reader.MAX_TEXT + 1,
)
_SUPPORTED = "plain text, HTML, PDF, Word (.docx) and PowerPoint (.pptx)"
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


async def extract_text(content: bytes, *, filename: str = "", content_type: str = "", waits: bool = False) -> str:
    """Return the text of a document.

    Raises `UnsupportedFile`, `InvalidFile` or `FileTooLarge`. If the pool is full, the call waits for a place with
    `waits`, and otherwise raises `Overloaded`.
    """
    # The content decides where possible: file names and media types are only claims of the client. PDF readers accept
    # the marker anywhere in the first kilobyte.
    beginning = content[:1024].lstrip().lower()
    claims_html = filename.lower().endswith((".html", ".htm")) or content_type.lower().startswith("text/html")
    if b"%PDF-" in content[:1024]:
        text = await _parsed("pdf", content, waits=waits)
    elif content.startswith(b"PK\x03\x04"):
        text = await _parsed("office", content, waits=waits)
    elif claims_html or beginning.startswith((b"<!doctype html", b"<html")):
        text = await _parsed("html", content, waits=waits)
    else:
        text = await asyncio.to_thread(_decoded, content)
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


async def _parsed(kind: str, content: bytes, *, waits: bool) -> str:
    try:
        result = await compute(READING, kind, content, waits=waits)
    except (TooCostly, ComputationFailed) as error:
        raise InvalidFile("The file could not be read: reading it takes too much time or memory.") from error
    match result[:1]:
        case document_reader.LOCKED:
            raise InvalidFile("The file could not be read: it is protected by a password.")
        case document_reader.COMPRESSED:
            raise InvalidFile("The file could not be read: its parts are neither stored nor compressed with deflate.")
        case document_reader.TOO_LONG:
            raise _too_long()
        case document_reader.UNKNOWN:
            raise _unsupported()
        case document_reader.UNREADABLE:
            raise InvalidFile("The file could not be read: it is damaged or not of the type it claims to be.")
    return result[1:].decode(errors="replace")


def _unsupported() -> BadRequest:
    return UnsupportedFile(f"The file type is not supported. Supported formats: {_SUPPORTED}.")


def _too_long() -> BadRequest:
    return FileTooLarge(f"The file contains too much text: the limit is {document_reader.MAX_TEXT} characters.")
