"""Text extraction from documents: supported types, errors, and resource limits."""

import io
import subprocess
import sys
import time
import zipfile

import pytest
from pypdf import PdfWriter

from conversations.files import document_reader
from conversations.files.extraction import extract_text
from kernel.errors import FileTooLarge, InvalidFile, UnsupportedFile
from tests.support import documents


@pytest.mark.parametrize("name", ["notes.txt", "notes.md", "data.json", "data.csv", "main.py", ""])
def test_plain_text_is_unchanged(name: str) -> None:
    assert extract_text("Äpfel, 3\n".encode(), filename=name) == "Äpfel, 3\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_determines_the_encoding(encoding: str) -> None:
    assert extract_text("Äpfel".encode(encoding)) == "Äpfel"


def test_the_text_of_pdf_pages_is_extracted() -> None:
    assert extract_text(documents.pdf("Seven apples"), filename="any.bin").strip() == "Seven apples"


def test_paragraphs_and_tables_of_a_word_document_are_extracted_in_order() -> None:
    content = documents.docx("First", "Second", row=("apples", "7"))
    assert extract_text(content) == "First\n\nSecond\n\napples\t7"


def test_slides_and_notes_of_a_presentation_are_extracted() -> None:
    assert extract_text(documents.pptx("Harvest", notes="Say it slowly")) == "Harvest\n\nSay it slowly"


def test_visible_text_of_html_is_extracted() -> None:
    page = b"<!DOCTYPE html><title>Fruit</title><script>let x = 1</script><p>Seven <b>apples</b></p><p>Two &amp; a half"
    assert extract_text(page) == "Fruit\nSeven apples\nTwo & a half"


def test_a_file_name_alone_makes_html_of_text() -> None:
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


def test_a_decompression_bomb_is_rejected() -> None:
    """A Word document of a few hundred kilobytes expands to gigabytes of text."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(documents.docx("x"))) as small,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in small.infolist():
            if entry.filename != "word/document.xml":
                archive.writestr(entry.filename, small.read(entry))
        with archive.open("word/document.xml", "w", force_zip64=True) as body:
            for _ in range(1200):
                body.write(b" " * 1024 * 1024)
    with pytest.raises(InvalidFile):
        extract_text(out.getvalue())


def test_the_directory_of_an_archive_is_not_read_in_the_server_process() -> None:
    """Reading a directory of the maximum size takes seconds and a gigabyte."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(40_000):
            archive.writestr(str(number), b"")
    began = time.process_time()
    with pytest.raises(UnsupportedFile):
        extract_text(out.getvalue())
    assert time.process_time() - began < 0.1


def test_the_extractor_process_has_resource_limits() -> None:
    """The limits are reported by an extractor that gets no document."""
    script = (
        "import runpy, resource, sys\n"
        "reader = runpy.run_path(sys.argv[1])\n"
        "reader['_limit']()\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[1], resource.getrlimit(resource.RLIMIT_CPU)[1])\n"
    )
    command = [sys.executable, "-I", "-c", script, document_reader.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert done.stdout.split() == [str(document_reader.MEMORY), str(document_reader.CPU_SECONDS)]
