"""Text extraction from documents: supported types, errors, and resource limits."""

import asyncio
import io
import resource
import time
import zipfile
import zlib
from collections.abc import Callable

import pytest
from docx import Document
from docx.enum.text import WD_BREAK
from docx.table import Table
from pptx import Presentation
from pptx.util import Inches
from pypdf import PdfWriter

from conversations.files import document_reader, extraction
from core.errors import FileTooLarge, InvalidFile, UnsupportedFile
from tests.support import documents
from tests.support.machine_clock import machine_time
from tests.support.sampling import sampled

PDF = documents.pdf("Seven apples")


def extract_text(content: bytes, *, filename: str = "", content_type: str = "") -> str:
    """Return the text of a document."""
    return asyncio.run(extraction.extract_text(content, filename=filename, content_type=content_type))


def word(
    body: str,
    *,
    namespace: str = "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    target: str = "word/document.xml",
    prolog: str = "",
    root: str = "document",
) -> bytes:
    """Return a Word document with the given body."""
    out = io.BytesIO()
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(
            "_rels/.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="rId1" Type="{kind}" Target="{target}"/></Relationships>',
        )
        document = f'{prolog}<w:{root} xmlns:w="{namespace}"><w:body>{body}</w:body></w:{root}>'
        archive.writestr(target.removeprefix("/"), document)
    return out.getvalue()


@pytest.mark.parametrize("name", ["notes.txt", "notes.md", "data.json", "data.csv", "main.py", ""])
def test_plain_text_is_unchanged(name: str) -> None:
    assert extract_text("Äpfel, 3\n".encode(), filename=name) == "Äpfel, 3\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_determines_the_encoding(encoding: str) -> None:
    assert extract_text("Äpfel".encode(encoding)) == "Äpfel"


@pytest.mark.slow
def test_the_text_of_pdf_pages_is_extracted() -> None:
    assert extract_text(documents.pdf("Seven apples"), filename="any.bin").strip() == "Seven apples"


@pytest.mark.parametrize(
    "content",
    [
        PDF.replace(b"%%EOF", b""),
        PDF[: PDF.rindex(b"startxref")],
        PDF[: PDF.rindex(b"startxref")] + b"%%EOF\n",
        PDF[: PDF.rindex(b"trailer")],
        PDF[: PDF.rindex(b"xref\n0")],
    ],
    ids=["no %%EOF", "no startxref", "only %%EOF", "no trailer", "no table"],
)
def test_a_pdf_without_its_end_is_read(content: bytes) -> None:
    assert extract_text(content).strip() == "Seven apples"


def test_paragraphs_and_tables_of_a_word_document_are_extracted_in_order() -> None:
    content = documents.docx("First", "Second", row=("apples", "7"))
    assert extract_text(content) == "First\n\nSecond\n\napples\t7"


def test_slides_and_notes_of_a_presentation_are_extracted() -> None:
    assert extract_text(documents.pptx("Harvest", notes="Say it slowly")) == "Harvest\n\nSay it slowly"


def test_word_documents_have_the_text_that_python_docx_reads() -> None:
    document = Document()
    document.add_heading("Harvest", level=1)
    line = document.add_paragraph("Seven\tapples")
    line.add_run(" and").bold = True
    line.add_run().add_break()
    line.add_run("two pears").add_break(WD_BREAK.PAGE)
    table = document.add_table(rows=3, cols=3)
    for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"cell {number}\nsecond line"
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(1, 2).merge(table.cell(2, 2))
    document.add_paragraph("Ende – 終わり", style="List Bullet")
    expected = [
        "\n".join("\t".join(cell.text for cell in row.cells) for row in block.rows)
        if isinstance(block, Table)
        else block.text
        for block in document.iter_inner_content()
    ]
    assert extract_text(documents.saved(document)) == "\n\n".join(expected)


def test_presentations_have_the_text_that_python_pptx_reads() -> None:
    presentation = Presentation()
    expected = []
    for title in ("Harvest", "Outlook"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[5])
        assert slide.shapes.title is not None
        slide.shapes.title.text_frame.text = f"{title}\nsecond line"
        group = slide.shapes.add_group_shape()
        box = group.shapes.add_textbox(Inches(1), Inches(1), Inches(1), Inches(1))
        box.text_frame.text = "inside a group"
        table = slide.shapes.add_table(2, 2, Inches(1), Inches(1), Inches(1), Inches(1)).table
        for number, cell in enumerate(table.iter_cells()):
            cell.text = str(number)
        table.cell(0, 0).merge(table.cell(0, 1))
        rows = ["\t".join(cell.text for cell in row.cells) for row in table.rows]
        expected += [slide.shapes.title.text_frame.text, box.text_frame.text, "\n".join(rows)]
        frame = slide.notes_slide.notes_text_frame
        assert frame is not None
        frame.text = "Say it slowly"
        expected.append(frame.text)
    # The order of slides is not that of their file names.
    slides = presentation.slides._sldIdLst
    slides.append(slides[0])
    assert extract_text(documents.saved(presentation)) == "\n\n".join(expected[4:] + expected[:4])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "<w:p><w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del></w:p>",
            "new",
        ),
        ("<w:p><w:moveFrom><w:r><w:t>a</w:t></w:r></w:moveFrom><w:r><w:t>b</w:t></w:r></w:p>", "b"),
        ("<w:sdt><w:sdtContent><w:p><w:r><w:t>control</w:t></w:r></w:p></w:sdtContent></w:sdt>", "control"),
        ("<w:p><w:hyperlink><w:r><w:t>link</w:t></w:r></w:hyperlink></w:p>", "link"),
        (
            "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>a</w:t><w:noBreakHyphen/><w:t>b</w:t></w:r></w:p>",
            "a-b",
        ),
        ("<w:p><w:r><w:instrText>PAGE</w:instrText></w:r><w:r><w:t>7</w:t></w:r></w:p>", "7"),
    ],
)
def test_changes_controls_links_and_fields_of_a_word_document_are_read(body: str, text: str) -> None:
    assert extract_text(word(body)) == text


def test_the_strict_variant_of_a_word_document_is_read() -> None:
    content = word(
        "<w:p><w:r><w:t>strict</w:t></w:r></w:p>", namespace="http://purl.oclc.org/ooxml/wordprocessingml/main"
    )
    assert extract_text(content) == "strict"


@pytest.mark.parametrize("target", ["word/document2.xml", "/word/document2.xml"])
def test_the_main_part_of_a_word_document_may_have_any_name(target: str) -> None:
    assert extract_text(word("<w:p><w:r><w:t>x</w:t></w:r></w:p>", target=target)) == "x"


def test_a_word_document_that_declares_entities_is_rejected() -> None:
    with pytest.raises(InvalidFile, match="damaged"):
        extract_text(word("<w:p><w:r><w:t>&a;</w:t></w:r></w:p>", prolog='<!DOCTYPE d [<!ENTITY a "apples">]>'))


def test_a_spreadsheet_is_not_supported() -> None:
    with pytest.raises(UnsupportedFile, match="Word"):
        extract_text(word("", root="workbook"))


def test_visible_text_of_html_is_extracted() -> None:
    page = b"<!DOCTYPE html><title>Fruit</title><script>let x = 1</script><p>Seven <b>apples</b></p><p>Two &amp; a half"
    assert extract_text(page) == "Fruit\nSeven apples\nTwo & a half"


def test_the_file_name_decides_that_text_is_html() -> None:
    assert extract_text(b"<p>Seven</p><p>apples</p>", filename="page.HTML") == "Seven\napples"


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\xff", b"a\x00b", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
def test_unknown_binary_types_are_not_supported(content: bytes) -> None:
    with pytest.raises(UnsupportedFile):
        extract_text(content)


def test_other_archives_are_not_supported() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("xl/workbook.xml", "<x/>")
    with pytest.raises(UnsupportedFile, match="Word"):
        extract_text(out.getvalue())


@pytest.mark.parametrize("content", [b"%PDF-1.7 nothing more", documents.docx("x")[:-40], b"PK\x03\x04"])
def test_a_damaged_document_is_rejected(content: bytes) -> None:
    with pytest.raises(InvalidFile):
        extract_text(content)


def test_an_encrypted_document_is_rejected() -> None:
    writer = PdfWriter()
    writer.add_blank_page(width=100, height=100)
    writer.encrypt("secret")
    out = io.BytesIO()
    writer.write(out)
    with pytest.raises(InvalidFile, match="password"):
        extract_text(out.getvalue())


@pytest.mark.parametrize("content", [b"", b" \n", documents.pdf("")])
def test_a_document_without_text_is_rejected(content: bytes) -> None:
    with pytest.raises(InvalidFile, match="no text"):
        extract_text(content)


def test_text_over_the_limit_is_rejected() -> None:
    with pytest.raises(FileTooLarge):
        extract_text(b"x" * (document_reader.MAX_TEXT + 1))


@pytest.mark.slow
def test_a_decompression_bomb_is_rejected() -> None:
    """A Word document of a few megabytes expands to gigabytes of text."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(documents.docx("x"))) as small,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for entry in small.infolist():
            if entry.filename != "word/document.xml":
                archive.writestr(entry.filename, small.read(entry))
        with archive.open("word/document.xml", "w", force_zip64=True) as body:
            before, after = small.read("word/document.xml").split(b">x<")
            body.write(before + b">x")
            for _ in range(700):
                body.write(b" " * 1024 * 1024)
            body.write(b"<" + after)
    # Without the memory limit, the text would be complete and too long.
    with pytest.raises(InvalidFile):
        extract_text(out.getvalue())


@pytest.mark.slow
def test_the_directory_of_an_archive_is_read_in_the_pool() -> None:
    """Reading a directory of the maximum size takes seconds and a gigabyte."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(40_000):
            archive.writestr(str(number), b"")
    began = time.process_time()
    with pytest.raises(UnsupportedFile):
        extract_text(out.getvalue())
    assert time.process_time() - began < 0.1


def packed(*parts: bytes) -> bytes:
    """Return a PDF of these objects without a table of objects."""
    body = b"".join(b"%d 0 obj\n%b\nendobj\n" % (number, part) for number, part in enumerate(parts, 1))
    return b"%PDF-1.7\n" + body + b"trailer << /Root 1 0 R /Size 9 >>\nstartxref\n0\n%%EOF"


def stream_of(content: bytes, *, rounds: int = 1) -> bytes:
    """Return a PDF whose page has a content that was compressed several times."""
    for _ in range(rounds):
        content = zlib.compress(content, 9)
    filters = b"/FlateDecode " * rounds
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>"
    data = b"<< /Length %d /Filter [%b] >>\nstream\n%b\nendstream" % (len(content), filters, content)
    pages = b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>"
    return packed(b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, data)


BOMBS: dict[str, Callable[[], bytes]] = {
    "a page tree that contains itself": lambda: packed(
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 9 /Kids [2 0 R 2 0 R] >>"
    ),
    "a table of objects that refers to itself": lambda: (
        b"%PDF-1.7\nxref\n0 1\n0000000000 65535 f \ntrailer << /Prev 9 /Size 1 >>\nstartxref\n9\n%%EOF"
    ),
    "arrays nested deeply": lambda: packed(b"[" * 200_000 + b"]" * 200_000),
    "a billion pages": lambda: packed(
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 1000000000 /Kids [] >>"
    ),
    "a content of gigabytes": lambda: stream_of(zlib.compress(bytes(1024**2) * 512, 9), rounds=2),
    "XML nested deeply": lambda: word("<w:sdt>" * 500_000 + "</w:sdt>" * 500_000),
    "a part of many entities": lambda: word("&a;" * 9, prolog='<!DOCTYPE x [<!ENTITY a "aaaa">]>'),
    "HTML nested deeply": lambda: b"<html>" + b"<div>" * 2_000_000,
    "HTML that never ends a tag": lambda: b"<html>" + b"<a " * 1_000_000,
    "a document that takes minutes": documents.slow_pdf,
}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("bomb", [pytest.param(BOMBS[name], id=name) for name in sampled(BOMBS, 2, key="bombs")])
def test_a_decompression_bomb_uses_little_memory_outside_the_pool(bomb: Callable[[], bytes]) -> None:
    content, used = bomb(), resource.getrusage(resource.RUSAGE_SELF)
    began = machine_time()
    with pytest.raises((InvalidFile, UnsupportedFile, FileTooLarge)):
        extract_text(content)
    after = resource.getrusage(resource.RUSAGE_SELF)
    # The time to wait for a processor comes on top of the limit of the pool.
    assert machine_time() - began < 60
    assert after.ru_utime - used.ru_utime < 2
    assert after.ru_maxrss - used.ru_maxrss < 64 * 1024
