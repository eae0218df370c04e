"""Extraction of the text of one document. Runs in a process of the computation pool (see `extraction`).

Documents are untrusted and their parsers are large. The module must not import other modules of the platform.
"""

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

from typing_extensions import override

# The first byte of the result.
TEXT, UNREADABLE, LOCKED, TOO_LONG, UNKNOWN, COMPRESSED = (bytes([code]) for code in range(6))
MAX_TEXT = 10_485_760
_BLOCK_TAGS = {"p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table"}
_HIDDEN_TAGS = {"script", "style", "template", "noscript"}
# Elements of Office documents whose text is read: content controls, insertions, groups of shapes, text of shapes…
_BLOCK_CONTAINERS = {
    "sdt",
    "sdtContent",
    "customXml",
    "ins",
    "moveTo",
    "AlternateContent",
    "Choice",
    "grpSp",
    "graphicFrame",
    "graphic",
    "graphicData",
    "txBody",
}
_OBJECT_NUMBER = re.compile(rb"\d+ +\d+\Z")
_LINE_CONTAINERS = {"r", "hyperlink", "fld", "fldSimple", "smartTag", "sdt", "sdtContent", "customXml", "ins", "moveTo"}


def read(kind: str, content: bytes) -> bytes:
    """Return the byte `TEXT` and the document's text in UTF-8, or a byte that says why the text cannot be read."""
    try:
        text = "\n\n".join(piece for piece in _READERS[kind](content) if piece.strip())
    except _LockedError:
        return LOCKED
    except _UnknownError:
        return UNKNOWN
    except _CompressedError:
        return COMPRESSED
    except MemoryError:
        raise
    # Parsers raise exceptions of many types for damaged documents.
    except Exception:
        return UNREADABLE
    return TEXT + text.encode(errors="replace") if len(text) <= MAX_TEXT else TOO_LONG


class _LockedError(Exception):
    """The document is protected by a password."""


class _CompressedError(Exception):
    """An archive has a member with a compression method that is not supported."""


class _UnknownError(Exception):
    """The archive is neither a Word nor a PowerPoint document."""


def _pdf(content: bytes) -> Iterator[str]:
    # Imported here, because only the processes of the pool need it.
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(io.BytesIO(content))
    except PyPdfError:
        # The end of the file is missing, for example because the upload was truncated. Other PDF readers search for the
        # objects in such a file.
        reader = PdfReader(io.BytesIO(content + _ending(content)))
    # Many PDFs are encrypted with an empty password only to restrict printing.
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise _LockedError
    for page in reader.pages:
        yield page.extract_text()


def _ending(content: bytes) -> bytes:
    """Return a trailer to append to a PDF without one. Its offset of 0 makes the parser search for the objects."""
    root = b""
    if b"trailer" not in content and (catalog := content.rfind(b"/Catalog")) >= 0:
        begin = content.rfind(b" obj", 0, catalog)
        if found := _OBJECT_NUMBER.search(content, max(0, begin - 20), begin):
            root = b"trailer\n<< /Root %b R >>\n" % found[0]
    return b"\n%bstartxref\n0\n%%%%EOF\n" % root


class _Builder(ET.TreeBuilder):
    """Builds the tree of one part of an Office document."""

    def doctype(self, *_: object) -> None:
        # The standard forbids declarations in parts, and only declared entities could expand to gigabytes.
        raise ValueError("A part of the document has a document type declaration.")


class _Package:
    """An Office document: an archive of XML parts that refer to each other by relationships."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def root(self, part: str) -> ET.Element:
        parser = ET.XMLParser(target=_Builder())  # noqa: S314 - without declarations, and in a process with limits
        with self._archive.open(part) as file:
            while chunk := file.read(65536):
                parser.feed(chunk)
        root: ET.Element = parser.close()
        return root

    def related(self, part: str, kind: str) -> dict[str, str]:
        """Return the names of the parts of a kind that `part` refers to, keyed by the id of the relationship."""
        folder, name = posixpath.split(part)
        relationships = posixpath.join(folder, "_rels", f"{name}.rels")
        if relationships not in self._archive.NameToInfo:
            return {}
        return {
            relationship.attrib["Id"]: posixpath.normpath(posixpath.join("/", folder, relationship.attrib["Target"]))[
                1:
            ]
            for relationship in self.root(relationships)
            if relationship.get("Type", "").endswith(f"/{kind}")
        }


def _office(content: bytes) -> Iterator[str]:
    # Word and PowerPoint are distinguished here and not in the parent process: listing the files of an archive is slow
    # if there are several 100,000.
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # Other compression methods take many times longer for the same number of bytes.
        if any(entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} for entry in archive.infolist()):
            raise _CompressedError
        package = _Package(archive)
        for part in package.related("", "officeDocument").values():
            root = package.root(part)
            match _name(root):
                case "document":
                    yield from _blocks(root.find("{*}body"))
                case "presentation":
                    yield from _presentation(package, part, root)
                case _:
                    raise _UnknownError
            return
    raise _UnknownError


def _presentation(package: _Package, part: str, root: ET.Element) -> Iterator[str]:
    slides = package.related(part, "slide")
    for listed in root.iterfind("{*}sldIdLst/{*}sldId"):
        # The slide's other `id`, without a namespace, is a number that nothing refers to.
        slide = slides[next(value for name, value in listed.items() if name.endswith("}id"))]
        yield from _blocks(package.root(slide).find("{*}cSld/{*}spTree"))
        for notes in package.related(slide, "notesSlide").values():
            for shape in package.root(notes).iterfind("{*}cSld/{*}spTree/{*}sp"):
                # The other shapes are the slide's picture, number, header and date.
                if shape.find("{*}nvSpPr/{*}nvPr/{*}ph[@type='body']") is not None:
                    yield "\n".join(_blocks(shape))


def _blocks(container: ET.Element | None) -> Iterator[str]:
    """Yield the text of paragraphs, shapes and tables in the order of the document."""
    for element in () if container is None else container:
        match _name(element):
            case "p":
                yield _line(element)
            case "tbl":
                yield _table(element)
            case "sp":
                yield "\n".join(_blocks(element))
            case name if name in _BLOCK_CONTAINERS:
                yield from _blocks(element)


def _line(container: ET.Element) -> str:
    """Return the text of a paragraph, without text that tracked changes deleted or moved away."""
    pieces: list[str] = []
    for element in container:
        match _name(element):
            case "t":
                pieces.append(element.text or "")
            case "tab" | "ptab":
                pieces.append("\t")
            case "noBreakHyphen":
                pieces.append("-")
            case "br" | "cr":
                # Page and column breaks have another type, and are usually within a sentence.
                pieces.append("\n" if _value(element, "type") in {None, "textWrapping"} else "")
            case name if name in _LINE_CONTAINERS:
                pieces.append(_line(element))
    return "".join(pieces)


def _table(table: ET.Element) -> str:
    rows: list[str] = []
    above: dict[int, str] = {}
    for row in table.iterfind("{*}tr"):
        cells: dict[int, str] = {}
        before = row.find("{*}trPr/{*}gridBefore")
        column = 0 if before is None else int(_value(before, "val") or 0)
        for cell in row.iterfind("{*}tc"):
            merged, span = cell.find("{*}tcPr/{*}vMerge"), cell.find("{*}tcPr/{*}gridSpan")
            continues = merged is not None and _value(merged, "val") != "restart"
            text = above.get(column, "") if continues else "\n".join(_blocks(cell))
            # A merged cell is repeated in each row and column that it covers, so that columns stay aligned.
            width = 1 if span is None else int(_value(span, "val") or 1)
            cells.update(dict.fromkeys(range(column, column + width), text))
            column += width
        rows.append("\t".join(cells.values()))
        above = cells
    return "\n".join(rows)


def _name(element: ET.Element) -> str:
    # Without the namespace, which differs between the two variants of the standard.
    return element.tag.rpartition("}")[2]


def _value(element: ET.Element, name: str) -> str | None:
    return next((value for key, value in element.items() if key.rpartition("}")[2] == name), None)


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


_READERS = {"pdf": _pdf, "office": _office, "html": _html}
