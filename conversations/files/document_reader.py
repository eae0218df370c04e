"""A program that reads one document from its input and writes the words in it; `extraction` runs it.

Documents come from strangers and their parsers are large, so each is read in a process of its own: with limits that the
kernel keeps, with nothing in its environment, and without any code of the platform's. It imports no module of ours.
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

UNREADABLE = 3
LOCKED = 4
TOO_LONG = 5
UNKNOWN = 6
MAX_TEXT = 10_485_760
CPU_SECONDS = 20
MEMORY = 1024 * 1024 * 1024
# Documents wait for requests, not the other way round.
_NICENESS = 10
_MAX_WRITTEN = 4 * MAX_TEXT
_SEPARATE = {"p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table"}
_UNSEEN = {"script", "style", "template", "noscript"}


def main(kind: str) -> int:
    """Read the document on standard input; the exit code says what went wrong."""
    _limit()
    content = sys.stdin.buffer.read()
    try:
        text = "\n\n".join(piece for piece in _READERS[kind](content) if piece.strip())
    except _LockedError:
        return LOCKED
    except _UnknownError:
        return UNKNOWN
    # Parsers raise whatever they like, and all of it means the same.
    except Exception:
        return UNREADABLE
    if len(text) > MAX_TEXT:
        return TOO_LONG
    sys.stdout.buffer.write(text.encode(errors="replace"))
    return 0


def _limit() -> None:
    """Once set, a limit cannot be taken back, whatever a document makes of its parser."""
    os.nice(_NICENESS)
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, _MAX_WRITTEN),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


class _LockedError(Exception):
    """A password is needed."""


class _UnknownError(Exception):
    """An archive of something else."""


def _pdf(content: bytes) -> Iterator[str]:
    from pypdf import PasswordType, PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise _LockedError
    for page in reader.pages:
        yield page.extract_text()


def _office(content: bytes) -> Iterator[str]:
    """Word or PowerPoint; an archive may list hundreds of thousands of files, so that even this is done here."""
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
    """A line for each row, tabs between the cells."""
    return "\n".join("\t".join(cell.text for cell in row.cells) for row in table.rows)


class _Words(HTMLParser):
    """Collects what a browser would show."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._unseen = 0

    @override
    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._unseen += tag in _UNSEEN
        if tag in _SEPARATE:
            self.text.append("\n")

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN and self._unseen:
            self._unseen -= 1
        if tag in _SEPARATE:
            self.text.append("\n")
        elif tag in {"td", "th"}:
            self.text.append("\t")

    @override
    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.text.append(data)


def _html(content: bytes) -> Iterator[str]:
    words = _Words()
    words.feed(content.decode(errors="replace"))
    words.close()
    lines = (" ".join(line.split()) for line in "".join(words.text).splitlines())
    yield "\n".join(line for line in lines if line)


_OFFICE = {"word/document.xml": _docx, "ppt/presentation.xml": _pptx}
_READERS = {"pdf": _pdf, "office": _office, "html": _html}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
