"""Small documents and images, generated on demand."""

import base64
import io
import struct
import zlib

from docx import Document
from docx.document import Document as WordDocument
from pptx import Presentation
from pptx.presentation import Presentation as SlideDeck


def pdf(text: str) -> bytes:
    """Return a PDF with one page of text."""
    drawing = f"BT /F1 12 Tf 9 50 Td ({text}) Tj ET".encode("latin-1")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(drawing), drawing),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n" % size + table + trailer


def slow_pdf() -> bytes:
    """Return a PDF of a few kilobytes that takes minutes to read: many pages with the same long content."""
    content = zlib.compress(b"BT /F1 12 Tf 1 0 0 1 9 9 Tm (x) Tj ET\n" * 20_000, 9)
    kids = b"3 0 R " * 5_000
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count 5000 /Kids [%b] >>" % kids,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body = b"".join(b"%d 0 obj\n%b\nendobj\n" % (number, part) for number, part in enumerate(parts, 1))
    # Readers rebuild a table of objects that is missing.
    return b"%PDF-1.7\n" + body + b"trailer << /Root 1 0 R /Size 6 >>\nstartxref\n0\n%%EOF"


def docx(*paragraphs: str, row: tuple[str, ...] = ()) -> bytes:
    """Return a Word document, optionally with a table of one row."""
    document = Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    if row:
        table = document.add_table(rows=1, cols=len(row))
        for cell, text in zip(table.rows[0].cells, row, strict=True):
            cell.text = text
    return saved(document)


def pptx(title: str, *, notes: str = "") -> bytes:
    """Return a presentation with one slide."""
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[0])
    assert slide.shapes.title is not None
    slide.shapes.title.text = title
    if notes and (frame := slide.notes_slide.notes_text_frame) is not None:
        frame.text = notes
    return saved(presentation)


def saved(document: WordDocument | SlideDeck) -> bytes:
    """Return a document as the file that its library writes."""
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def png() -> bytes:
    """Return a PNG of one pixel."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(bytes(4))) + _chunk(b"IEND")


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(content: bytes, media_type: str) -> str:
    """Return the content as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
