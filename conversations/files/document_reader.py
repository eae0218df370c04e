"""Program that extracts the text of one document from standard input to standard output; run by `extraction`.

Documents are untrusted and their parsers are large, so each document is parsed in a separate process with an empty
environment and resource limits that the kernel enforces. The program must not import other modules of the platform.
"""

import io
import os
import resource
import sys
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from typing_extensions import override

# Exit codes. Python itself uses 1 and 2.
UNREADABLE = 3
LOCKED = 4
TOO_LONG = 5
UNKNOWN = 6
MAX_TEXT = 10_485_760
CPU_SECONDS = 20
MEMORY = 1024 * 1024 * 1024
# Requests come first: extraction must not slow down the web process on a busy machine.
_NICENESS = 10
# A character takes at most four bytes in UTF-8.
_MAX_WRITTEN = 4 * MAX_TEXT
_BLOCK_TAGS = {"p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table"}
_HIDDEN_TAGS = {"script", "style", "template", "noscript"}


def main(kind: str) -> int:
    """Extract the text of the document on standard input; returns the exit code."""
    _limit()
    content = sys.stdin.buffer.read()
    try:
        text = "\n\n".join(piece for piece in _READERS[kind](content) if piece.strip())
    except _LockedError:
        return LOCKED
    except _UnknownError:
        return UNKNOWN
    # Parsers raise exceptions of many types for damaged documents.
    except Exception:
        return UNREADABLE
    if len(text) > MAX_TEXT:
        return TOO_LONG
    sys.stdout.buffer.write(text.encode(errors="replace"))
    return 0


def _limit() -> None:
    os.nice(_NICENESS)
    # Soft and hard limits are equal, so that code injected through a parser cannot raise them again.
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, _MAX_WRITTEN),
        # A core dump would write the document to disk.
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


class _LockedError(Exception):
    """The document is protected by a password."""


class _UnknownError(Exception):
    """The archive is neither a Word nor a PowerPoint document."""


def _pdf(content: bytes) -> Iterator[str]:
    # Parsers are imported late: they take long to load, and one run needs only one of them.
    from pypdf import PasswordType, PdfReader

    reader = PdfReader(io.BytesIO(content))
    # Many PDFs are encrypted with an empty password only to restrict printing.
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise _LockedError
    for page in reader.pages:
        yield page.extract_text()


def _office(content: bytes) -> Iterator[str]:
    # Distinguished here and not in the parent process: listing an archive of several 100,000 files is already costly.
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        read = next((read for name, read in _OFFICE.items() if name in archive.NameToInfo), None)
    if read is None:
        raise _UnknownError
    yield from read(content)


def _docx(content: bytes) -> Iterator[str]:
    from docx import Document
    from docx.table import Table

    for block in Document(io.BytesIO(content)).iter_inner_content():
        yield _table(block) if isinstance(block, Table) else block.text


def _pptx(content: bytes) -> Iterator[str]:
    from pptx import Presentation

    for slide in Presentation(io.BytesIO(content)).slides:
        yield from _shapes(slide.shapes)
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            yield notes.text


def _shapes(shapes: Any) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        elif shape.has_text_frame:
            yield shape.text_frame.text
        elif getattr(shape, "has_table", False):
            yield _table(shape.table)


def _table(table: Any) -> str:
    return "\n".join("\t".join(cell.text for cell in row.cells) for row in table.rows)


class _VisibleText(HTMLParser):
    """Collects the text that a browser would show."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        # Depth of nested hidden elements.
        self._hidden = 0

    @override
    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden += tag in _HIDDEN_TAGS
        if tag in _BLOCK_TAGS:
            self.text.append("\n")

    @override
    def handle_endtag(self, tag: str) -> None:
        # End tags may come without a start tag in broken HTML.
        if tag in _HIDDEN_TAGS and self._hidden:
            self._hidden -= 1
        if tag in _BLOCK_TAGS:
            self.text.append("\n")
        elif tag in {"td", "th"}:
            self.text.append("\t")

    @override
    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text.append(data)


def _html(content: bytes) -> Iterator[str]:
    parser = _VisibleText()
    parser.feed(content.decode(errors="replace"))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.text).splitlines())
    yield "\n".join(line for line in lines if line)


_OFFICE = {"word/document.xml": _docx, "ppt/presentation.xml": _pptx}
_READERS = {"pdf": _pdf, "office": _office, "html": _html}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
